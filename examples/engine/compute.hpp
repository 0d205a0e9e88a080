// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "hypic/algebra/rotation.hpp"
#include "hypic/core/tensor_view.hpp"

namespace hypic_engine {

using rows_in = hypic::tensor_view<float const, 2>;  ///< [rows, values], unit last stride
using rows_out = hypic::tensor_view<float, 2>;

/// A row-major buffer of fp32, zero at first.
class buffer {
 public:
  buffer() = default;
  buffer(std::int64_t rows, std::int64_t width)
      : rows_(rows), width_(width), data_(static_cast<std::size_t>(rows * width)) {}

  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t width() const noexcept { return width_; }
  rows_out view() noexcept { return hypic::dense_view(data_.data(), rows_, width_); }
  rows_in view() const noexcept { return hypic::dense_view(data_.data(), rows_, width_); }
  /// Columns [first, first + width) of every row.
  rows_out columns(std::int64_t first, std::int64_t width) noexcept;
  std::vector<float> const& data() const noexcept { return data_; }

 private:
  std::int64_t rows_ = 0;
  std::int64_t width_ = 0;
  std::vector<float> data_;
};

/// [rows, heads * dim] as [rows, heads, dim].
template <class T>
hypic::tensor_view<T, 3> split_heads(hypic::tensor_view<T, 2> rows, std::int64_t heads) noexcept {
  auto const dim = rows.extent[1] / heads;
  return {rows.data, {rows.extent[0], heads, dim}, {rows.stride[0], dim, 1}};
}

/// Consecutive rows that are computed together. A row's bits depend on its block alone, so blocks are cut from runs of
/// rows by a fixed length, never by the batch.
struct row_block {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};
std::vector<row_block> cut_blocks(std::span<row_block const> runs);

/// Makes BLAS run each product on the thread that asks for it, so that a product's bits depend on its shape alone.
void use_one_blas_thread();

/// The BLAS that multiplies, its version and the kernel that it chose for this processor: they decide bits.
std::string blas_name();

/// For the first line of a main function, whose arguments `words` are. Two libraries read settings when they are loaded,
/// and their own defaults are bad here: OpenBLAS falls back to SSE3 on a processor that is newer than it is, at half the
/// speed, and an OpenMP thread that waits spins on the core that another program needs. Sets OPENBLAS_CORETYPE and
/// OMP_WAIT_POLICY, each where it is unset, and starts the program again. A write beyond a limit of file sizes fails from
/// then on, where it would end the program.
void use_good_settings(char** words);

/// out = in weights^T, in one single-threaded call of BLAS. Shapes: in [rows, weights.cols], out [rows, weights.rows].
void multiply(rows_in in, matrix const& weights, rows_out out);

/// out = in / sqrt(mean(in^2) + epsilon) * weight, row by row; no weight where it is empty. `out` may be `in`.
void rms_norm(rows_in in, std::span<float const> weight, double epsilon, rows_out out);

float silu(float x) noexcept;
float sigmoid(float x) noexcept;

/// Turns rows of heads to their positions: the table holds cosines and sines of every row, made in fp64.
class rotary_table {
 public:
  rotary_table() = default;
  rotary_table(hypic::rotary_embedding const& rotary, std::span<std::int64_t const> positions);
  /// Shapes: [rows of the block, heads, dim], rotate-half pairing; `first_row` is the block's first row in the table.
  void turn(hypic::tensor_view<float, 3> heads, std::int64_t first_row) const;

 private:
  std::int64_t pairs_ = 0;
  std::vector<float> cosine_;
  std::vector<float> sine_;
};

/// Natural logs of the probabilities that a row of logits stands for.
std::vector<double> log_softmax(rows_in rows, std::int64_t row);

}  // namespace hypic_engine
