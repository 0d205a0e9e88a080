// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The loops that the host back end's time goes into: small row-major matrices, rows `stride` elements apart.
///
/// One rule holds for all of them: an output element is made by one order of operations, which depends on the length
/// of its inner sum alone. The rows and columns of a call and the instructions of the processor change no bit.
namespace hypic::inline v0 {

/// A row length, in elements, at which a matrix's rows start on cache lines of different sets.
constexpr std::int64_t padded_row(std::int64_t columns) noexcept { return (columns + 15) / 16 * 16 | 16; }

enum class store_mode : std::uint8_t { set, add };

/// Left operand of `product`: element (r, i) is data[r * row_stride + i * inner_stride], so that it may be transposed.
struct left_operand {
  float const* data;
  std::int64_t row_stride;
  std::int64_t inner_stride;
  constexpr left_operand below(std::int64_t row) const noexcept {
    return {data + row * row_stride, row_stride, inner_stride};
  }
  constexpr left_operand from(std::int64_t inner) const noexcept {
    return {data + inner * inner_stride, row_stride, inner_stride};
  }
};

/// A row-major matrix or a part of one.
template <class T>
struct matrix_view {
  T* data;
  std::int64_t stride;
  constexpr T* row(std::int64_t r) const noexcept { return data + r * stride; }
  constexpr matrix_view at(std::int64_t r, std::int64_t column) const noexcept { return {row(r) + column, stride}; }
  constexpr operator matrix_view<T const>() const noexcept { return {data, stride}; }  // NOLINT
};

/// out[rows, columns] = or += left[rows, inner] right[inner, columns], summed in blocks of 16 in the order of `inner`.
void product(std::int64_t rows, std::int64_t columns, std::int64_t inner, left_operand left,
             matrix_view<float const> right, matrix_view<float> out, store_mode mode) noexcept;

/// x, rounded to those 29 bits that make its products with fp32 values exact in fp64.
constexpr double exact_factor(double x) noexcept {
  double const scaled = x * (0x1p24 + 1.0);
  return scaled - (scaled - x);
}

/// out[rows, columns] = left[rows, inner] right[inner, columns], summed in fp64 in the order of `inner`. Every element
/// of `left` is an `exact_factor`: its products need no rounding, so that those sets that can may fuse them with sums.
void exact_product(std::int64_t rows, std::int64_t columns, std::int64_t inner, matrix_view<double const> left,
                   matrix_view<float const> right, matrix_view<double> out) noexcept;

/// out[j] = x . rows[j] for j in [0, count), in fp64.
void row_dots(std::int64_t count, std::int64_t dim, double const* x, matrix_view<double const> rows,
              double* out) noexcept;

/// out[d] = exp(to[d] - from[d]) x[d].
void decayed_row(std::int64_t dim, double const* to, double const* from, double const* x, double* out) noexcept;
void decayed_row(std::int64_t dim, double const* to, double const* from, double const* x, float* out) noexcept;

/// out[d] = exp(logs[d]), logs at most 0.
void decays(std::int64_t count, float const* logs, double* out) noexcept;

/// A chain of sums through one row: x <- decay[i] x + added[i][c], in fp64 and rounded to fp32 at each link. Several
/// links at a time read as many streams of memory, which one stream does not fill.
inline constexpr std::int64_t most_links = 4;
struct decay_chain {
  std::int64_t links;  ///< at most `most_links`
  double decay[most_links];
  float const* added[most_links];
};

/// out[c] = in[c] through the chain. `out` may be `in`.
void decayed_sum(std::int64_t columns, decay_chain const& chain, float const* in, float* out) noexcept;

/// Solves U_i = beta_i (v_i - x_i) - sum_{j<i} lower_ij U_j in fp64. `u` holds x on entry and U on return. Without `v`
/// its rows are zero. rows <= solve_rows.
inline constexpr std::int64_t solve_rows = 32;
void solve(std::int64_t rows, std::int64_t columns, matrix_view<double const> lower, double const* beta,
           matrix_view<float const> v, matrix_view<double> u) noexcept;

/// A state, kept in fp64 and rounded to fp32, or columns of it. `copies` groups of columns, `copy_offset` apart, are
/// states of their own that the same rows go through.
struct state_columns {
  matrix_view<double> exact;
  matrix_view<float> rounded;
  std::int64_t copies = 1;
  std::int64_t copy_offset = 0;
  constexpr state_columns at(std::int64_t r, std::int64_t column) const noexcept {
    return {exact.at(r, column), rounded.at(r, column), copies, copy_offset};
  }
};

/// state[rows, columns] = decay[r * decay_stride] state + keys[inner, rows]^T updates[inner, columns], in fp64: what
/// rounding would leave beside a key, no later update with that key takes away.
void advance(std::int64_t rows, std::int64_t columns, std::int64_t inner, matrix_view<double const> keys,
             matrix_view<double const> updates, double const* decay, std::int64_t decay_stride,
             state_columns state) noexcept;

}  // namespace hypic::inline v0
