// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hypic/core/exec.hpp"
#include "hypic/core/status.hpp"
#include "hypic/core/tensor_view.hpp"

namespace hypic::inline v0 {

/// One run of a convolution: consecutive rows, and the index of the tail that stands before them.
struct convolution_run {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t tail = -1;  ///< index into `tails`; -1: zeros
};

/// The causal depthwise convolution that stands before q, k, v, then silu:
/// out[t, c] = silu(sum over j of weight[c, j] * raw[t - (K-1) + j, c]), rows before the run being its tail.
/// Shapes:     raw, out [rows, channels]; weight [channels, K]; tails [tails, K-1, channels]. `out` must not overlap.
///             Runs share no row; rows of no run are left alone.
/// Guarantees: no allocation; the same bits for any number of threads and in any batch.
/// Errors:     invalid_shape (also where `out` starts where an input does), out_of_range (a run or a tail, two runs that
///             share a row).
HYPIC_API status short_convolution(tensor_view<float const, 2> raw, tensor_view<float const, 2> weight,
                                   tensor_view<float const, 3> tails, std::span<convolution_run const> runs,
                                   tensor_view<float, 2> out, host_exec const& ex);

}  // namespace hypic::inline v0
