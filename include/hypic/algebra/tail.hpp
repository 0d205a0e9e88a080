// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/status.hpp"
#include "hypic/core/tensor_view.hpp"

namespace hypic::inline v0 {

/// The tail after a span: the last K-1 raw rows of (the tail before it, the span's own rows), for a causal
/// convolution of length K. Of the span's rows those that were forwarded are the fresh ones, the others the cached.
/// Shapes: previous, out [K-1, channels]; fresh [f, channels], the span's first f rows; cached [min(K-1, tokens),
///         channels], its last rows as computed alone (empty where f = tokens). `out` must not overlap an input.
/// Units:  `tokens` is the span's length. Errors: invalid_shape, also where `out` starts where an input does.
HYPIC_API status continue_tail(tensor_view<float const, 2> previous, std::int64_t tokens,
                               tensor_view<float const, 2> fresh, tensor_view<float const, 2> cached,
                               tensor_view<float, 2> out);

}  // namespace hypic::inline v0
