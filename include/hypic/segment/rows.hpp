// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "hypic/core/tensor_view.hpp"

namespace hypic::inline v0 {

/// The space a caller's gates are in. Natural and base-2 logs are at most 0, -inf being a reset; linear ones lie in
/// [0, 1]. A tag that differs from the plan's is refused; values out of range set `value_flags`.
enum class gate_space : std::uint8_t { natural_log, log2, linear };

/// Rows of one linear layer as its recurrence consumes them, before any normalisation inside the library.
/// Shapes: k [rows, key_heads, Dk], v [rows, value_heads, Dv], gates [rows, value_heads, gate_elements(F)],
///         beta [rows, value_heads], any strides, for families of the delta rule, empty for the others.
/// Units:  gates in the space of the plan, beta activated (0 .. 2); both stay fp32, whatever k and v are.
///         A constant decay is a gate view with token stride 0.
template <class T>
struct basic_rows_view {
  tensor_view<T, 3> k{};
  tensor_view<T, 3> v{};
  tensor_view<T, 3> gates{};
  tensor_view<T, 2> beta{};

  constexpr std::int64_t count() const noexcept { return k.extent[0]; }
  constexpr bool empty() const noexcept { return k.empty(); }
  constexpr basic_rows_view slice(std::int64_t first, std::int64_t rows) const noexcept {
    return {k.rows(first, rows), v.rows(first, rows), gates.rows(first, rows), beta.rows(first, rows)};
  }
  constexpr operator basic_rows_view<T const>() const noexcept  // NOLINT
    requires(!std::is_const_v<T>)
  {
    return {k, v, gates, beta};
  }
};
using rows_view = basic_rows_view<float>;
using const_rows_view = basic_rows_view<float const>;

/// Rows with queries. Shapes: q [rows, key_heads, Dk], as many rows as `rows`.
struct query_rows_view {
  tensor_view<float const, 3> q{};
  const_rows_view rows{};
  gate_space gates = gate_space::natural_log;
};

/// What was wrong with the values of a run of rows; bits of one word a sequence. A sequence with any bit but
/// `expansive_update` set may not be published.
enum value_flag : std::uint32_t {
  gate_out_of_range = 1u << 0,  ///< a positive log gate, or a linear one outside of [0, 1]
  non_finite = 1u << 1,         ///< a NaN or an infinity in q, k, v, beta; a NaN gate
  expansive_update = 1u << 2,   ///< b |k|^2 outside of [-2^-6, 2 + 2^-6]: the norm of T is no longer bounded by 1
};

/// How rows are consumed; the same for prefill and for repair.
struct row_options {
  float q_scale = 1.0f;       ///< multiplies q
  bool l2_normalize = false;  ///< q and k are divided by sqrt(sum of squares + l2_epsilon), a head
  float l2_epsilon = 1e-6f;
  gate_space gates = gate_space::natural_log;
  friend constexpr bool operator==(row_options const&, row_options const&) = default;
};

}  // namespace hypic::inline v0
