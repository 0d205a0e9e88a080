// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/short_convolution.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/calls.hpp"
#include "core/exponential.hpp"
#include "core/parallel.hpp"
#include "core/shapes.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t tile_channels = 32;
constexpr std::int64_t tile_rows = 16;

status check_run(convolution_run const& run, std::int64_t rows, std::int64_t tails) noexcept {
  if (run.first_row < 0) {
    return {status::out_of_range, "runs.first_row", run.first_row, status::relation::at_least, 0};
  }
  if (run.rows < 0) return {status::out_of_range, "runs.rows", run.rows, status::relation::at_least, 0};
  if (run.first_row > rows) {
    return {status::out_of_range, "runs.first_row", run.first_row, status::relation::at_most, rows};
  }
  if (run.rows > rows - run.first_row) {
    return {status::out_of_range, "runs.rows", run.rows, status::relation::at_most, rows - run.first_row};
  }
  if (run.tail < -1) return {status::out_of_range, "runs.tail", run.tail, status::relation::at_least, -1};
  if (run.tail >= tails) return {status::out_of_range, "runs.tail", run.tail, status::relation::at_most, tails - 1};
  return status::ok;
}

status check(tensor_view<float const, 2> raw, tensor_view<float const, 2> weight, tensor_view<float const, 3> tails,
             std::span<convolution_run const> runs, tensor_view<float, 2> out) noexcept {
  auto const [rows, channels] = raw.extent;
  auto const length = weight.extent[1];
  if (auto const s = expect_extent("weight", weight, 1, 1); s != status::ok) return s;
  auto const checked = first_failure(
      expect_shape("raw", raw, raw.extent), expect_shape("weight", weight, {channels, length}),
      expect_shape("out", out, raw.extent), expect_apart("out overlaps an input", out, raw, weight, tails));
  if (checked != status::ok) return checked;
  if (auto const s = expect_shape("tails", tails, {tails.extent[0], length - 1, channels}); s != status::ok) return s;
  for (auto const& run : runs) {
    if (auto const s = check_run(run, rows, tails.extent[0]); s != status::ok) return s;
  }
  auto const rows_of = [&](std::int64_t i) {
    auto const& run = runs[static_cast<std::size_t>(i)];
    return std::pair{run.first_row, run.rows};
  };
  if (!share_no_row(static_cast<std::int64_t>(runs.size()), rows_of))
    return {status::out_of_range, "runs: two that share a row"};
  return status::ok;
}

/// x / (1 + exp(-x)), by an exponential that cannot overflow.
float silu(float x) noexcept {
  float const decayed = exp_nonpositive(-std::fabs(x));
  return (x < 0.0f ? x * decayed : x) / (1.0f + decayed);
}

/// One run, seen from channel `first` on.
struct channel_run {
  float const* raw;
  float const* tail;  ///< its first row; null for zeros
  float* out;
  std::int64_t raw_stride, tail_stride, out_stride;
  std::int64_t tail_rows;

  /// The row at `index` of the run, which is negative for rows of the tail; null where that is zero.
  float const* row(std::int64_t index) const noexcept {
    if (index >= 0) return raw + index * raw_stride;
    return tail == nullptr ? nullptr : tail + (tail_rows + index) * tail_stride;
  }
};

void convolve_tile(channel_run const& run, std::int64_t first_row, std::int64_t rows, float const* weight,
                   std::int64_t weight_stride, std::int64_t channels) noexcept {
  float sums[tile_rows][tile_channels]{};
  for (std::int64_t j = 0; j <= run.tail_rows; ++j) {
    float tap[tile_channels];
    for (std::int64_t c = 0; c < channels; ++c) tap[c] = weight[c * weight_stride + j];
    for (std::int64_t t = 0; t < rows; ++t) {
      float const* const row = run.row(first_row + t - run.tail_rows + j);
      if (row == nullptr) continue;
      for (std::int64_t c = 0; c < channels; ++c) sums[t][c] += tap[c] * row[c];
    }
  }
  for (std::int64_t t = 0; t < rows; ++t) {
    float* const out = run.out + (first_row + t) * run.out_stride;
    for (std::int64_t c = 0; c < channels; ++c) out[c] = silu(sums[t][c]);
  }
}

}  // namespace

status short_convolution(tensor_view<float const, 2> raw, tensor_view<float const, 2> weight,
                         tensor_view<float const, 3> tails, std::span<convolution_run const> runs,
                         tensor_view<float, 2> out, host_exec const& ex) {
  auto const checked = first_failure(check(raw, weight, tails, runs, out), expect_exec(ex, 0));
  if (checked != status::ok) return checked;
  auto const told = tell(ex, "segment.short_convolution");

  auto const channels = raw.extent[1];
  auto const tail_rows = weight.extent[1] - 1;
  auto const tasks = (channels + tile_channels - 1) / tile_channels;
  parallel_for(ex.threads, tasks, [&](std::int64_t task, int) {
    auto const first = task * tile_channels;
    auto const width = std::min(tile_channels, channels - first);
    for (auto const& run : runs) {
      if (run.rows == 0) continue;
      bool const has_tail = run.tail >= 0 && tail_rows > 0;
      channel_run const part{raw[run.first_row].data + first,
                             has_tail ? tails[run.tail].data + first : nullptr,
                             out[run.first_row].data + first,
                             raw.stride[0],
                             tails.stride[1],
                             out.stride[0],
                             tail_rows};
      for (std::int64_t row = 0; row < run.rows; row += tile_rows) {
        convolve_tile(part, row, std::min(tile_rows, run.rows - row), weight[first].data, weight.stride[0], width);
      }
    }
  });
  return status::ok;
}

}  // namespace hypic::inline v0
