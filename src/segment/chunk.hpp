// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/matrix.hpp"
#include "core/scratch.hpp"
#include "hypic/algebra/rotation.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/rows.hpp"
#include "segment/head_state.hpp"

namespace hypic::inline v0 {

/// Tokens after which a head's state is rounded to fp32: runs that break there give the bits of whole ones.
inline constexpr std::int64_t settle_tokens = 512;

/// Rows as one value head reads them. `q` may be empty; `turn` moves keys that were cached at canonical positions.
struct head_rows {
  tensor_view<float const, 2> q{};
  tensor_view<float const, 2> k{};
  tensor_view<float const, 2> v{};
  tensor_view<float const, 2> gates{};
  tensor_view<float const, 1> beta{};
  rotation const* turn = nullptr;

  std::int64_t count() const noexcept { return k.extent[0]; }
  head_rows slice(std::int64_t first, std::int64_t count) const noexcept {
    return {q.rows(first, count),     k.rows(first, count),    v.rows(first, count),
            gates.rows(first, count), beta.rows(first, count), turn};
  }
};

/// The part of [rows, heads(, dim)] that belongs to one head.
template <class T>
tensor_view<T, 2> head_of(tensor_view<T, 3> const& view, std::int64_t head) noexcept {
  if (view.empty()) return {};
  return {view.data + head * view.stride[1], {view.extent[0], view.extent[2]}, {view.stride[0], view.stride[2]}};
}
template <class T>
tensor_view<T, 1> head_of(tensor_view<T, 2> const& view, std::int64_t head) noexcept {
  if (view.empty()) return {};
  return {view.data + head * view.stride[1], {view.extent[0]}, {view.stride[0]}};
}

inline head_rows head_of(const_rows_view const& rows, state_dims const& dims, std::int32_t head) noexcept {
  return {{},
          head_of(rows.k, dims.key_head_of(head)),
          head_of(rows.v, head),
          head_of(rows.gates, head),
          head_of(rows.beta, head),
          nullptr};
}
inline head_rows head_of(query_rows_view const& in, state_dims const& dims, std::int32_t head) noexcept {
  auto rows = head_of(in.rows, dims, head);
  rows.q = head_of(in.q, dims.key_head_of(head));
  return rows;
}

/// Runs rows through a head's state, a chunk of them at a time in matrix form. With G_i the sum of log gates from the
/// chunk's first row to row i, S the state before the chunk, and for the delta rule b and k of each row:
///
///   update rows  U_i = b_i (v_i - S^T exp(G_i) k_i) - sum_{j<i} L_ij U_j,  L_ij = b_i k_i^T exp(G_i - G_j) k_j
///                (without the delta rule U_i = v_i)
///   outputs      o_i = S^T exp(G_i) q_i + sum_{j<=i} (q_i^T exp(G_i - G_j) k_j) U_j
///   next state   exp(G_n) S + sum_j exp(G_n - G_j) k_j U_j^T
///
/// Every exponent is at most 0 and ends at a row that may see it, so that nothing overflows and no row depends on a
/// later one. Keys, gates and L are fp64: under b |k|^2 = 2 nothing decays, and an error in L that repeats with a
/// repeated key would grow with every token. For the same reason U is fp64 from the products that make it, of fp64 keys
/// and S as rounded to fp32, to the sums into S. Outputs are products in fp32.
template <state_family F>
class chunk_runner {
 public:
  static constexpr std::int64_t chunk = F::gate_per_channel ? 16 : 32;
  static_assert(chunk <= solve_rows && settle_tokens % chunk == 0);

  static std::int64_t bytes(state_dims const& dims) noexcept;
  chunk_runner(state_dims const& dims, row_options const& options, scratch& memory) noexcept;

  /// Runs all of `rows`, the first of which is token `position` of the grid of chunks. Writes `o` unless it is empty.
  /// Returns what was wrong with their values, as bits of value_flag.
  std::uint32_t run(head_rows const& rows, std::int64_t position, head_state& state, tensor_view<float, 2> o) noexcept;

 private:
  std::uint32_t run_chunk(head_rows const& rows, head_state& state, tensor_view<float, 2> o) noexcept;
  std::uint32_t read(head_rows const& rows, head_state& state) noexcept;
  std::uint32_t read_key(head_rows const& rows, std::int64_t i) noexcept;
  std::uint32_t read_query(head_rows const& rows, std::int64_t i) noexcept;
  std::uint32_t read_gates(head_rows const& rows, std::int64_t i, head_state& state) noexcept;
  void relate(std::int64_t count, bool with_queries) noexcept;
  void copy_updates(head_rows const& rows) noexcept;
  void solve_updates(head_rows const& rows, head_state& state) noexcept;
  void write_outputs(head_rows const& rows, head_state const& state, tensor_view<float, 2> o) noexcept;
  void advance(std::int64_t count, head_state& state) noexcept;
  /// decayed_ row j = exp(to - from) k_j.
  void decay_key(double const* from, double const* to, std::int64_t j) noexcept;
  /// exp(G_i) k_i of the first `count` rows, as exact factors.
  matrix_view<double const> keys_from_start(std::int64_t count) noexcept;
  /// exp(G_i) q_i of the first `count` rows.
  left_operand queries_from_start(std::int64_t count) noexcept;
  /// U of the running state's columns.
  matrix_view<float const> rounded_updates(head_rows const& rows) noexcept;

  double* log_sum(std::int64_t row) const noexcept { return log_sums_ + (row + 1) * channels_; }

  std::int64_t key_dim_;
  std::int64_t value_dim_;
  std::int64_t channels_;
  row_options options_;
  matrix_view<double> keys_;     ///< normalised and turned
  matrix_view<double> queries_;  ///< normalised and scaled
  matrix_view<double> decayed_;  ///< keys, decayed from or to one row
  double* log_sums_;             ///< G, after a row of zeros for the chunk's start
  double* gates_;                ///< natural logs of one row
  double* betas_;
  double* dots_;                        ///< one row's products with the keys before it
  matrix_view<double> lower_;           ///< L
  matrix_view<float> attention_;        ///< q_i^T exp(G_i - G_j) k_j
  matrix_view<float> scaled_;           ///< queries, decayed from the chunk's start
  matrix_view<double> updates_;         ///< U
  matrix_view<float> rounded_updates_;  ///< U of the running state, where it is not V
};

/// Scratch of one worker, which runs one head at a time.
template <state_family F>
std::int64_t worker_bytes(state_dims const& dims) noexcept {
  return head_state::bytes(F::form, dims) + chunk_runner<F>::bytes(dims);
}

}  // namespace hypic::inline v0
