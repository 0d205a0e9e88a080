// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hypic/algebra/rotation.hpp"
#include "hypic/core/export.hpp"
#include "hypic/core/status.hpp"

namespace hypic::inline v0 {

/// Lays a turn out as the tables of the CUDA back end point to it, for the host to upload: its cosines, then its sines,
/// fp32, a pair each. The identity has none; its pointer in a table is null.
/// Shapes: `to` has 2 * turn.cosine.size() elements. Errors: invalid_shape.
HYPIC_API status write_angles(rotation const& turn, std::span<float> to) noexcept;

}  // namespace hypic::inline v0
