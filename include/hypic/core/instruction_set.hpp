// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hypic/core/export.hpp"

namespace hypic::inline v0 {

/// The widest vectors that the host back end uses on this processor: "avx512", "avx2" (with FMA) or "baseline", which
/// any processor of the architecture has. Chosen once, at run time; a part of the model fingerprint. All give the same bits.
HYPIC_API char const* host_instruction_set() noexcept;

}  // namespace hypic::inline v0
