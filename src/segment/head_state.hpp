// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/matrix.hpp"
#include "core/scratch.hpp"
#include "hypic/algebra/rotation.hpp"
#include "hypic/algebra/summary.hpp"
#include "hypic/core/tensor_view.hpp"
#include "hypic/family/family.hpp"

namespace hypic::inline v0 {

/// One head of a summary: operator [operator_elements], end state [Dk, Dv].
template <class T>
struct head_summary {
  tensor_view<T, 1> op{};
  tensor_view<T, 2> end_state{};
};

template <class T>
head_summary<T> head_of(basic_summary_view<T> const& summary, std::int64_t head) noexcept {
  return {summary.operators[head], summary.end_states[head]};
}

/// The state of one value head while rows run through it and, during a body, what the body has summed up so far. They
/// stand side by side as the columns of one matrix [Dk, columns], because a row does the same to all of them:
///   [ running state: Dv | end state of the body: Dv | operator of the body: Dk, dense families only ]
/// Where the body starts from the end state that it already has, the first two are one and the same.
///
/// The matrix is kept in fp64 and, for products with it, rounded to fp32. Were it kept in fp32 alone, a constant input
/// under a decay near 1 would round the same way at every chunk, and a million tokens would lose 1e-4. `settle` drops
/// what fp32 does not hold: done on a fixed grid of tokens, it gives a run that was broken there the bits of a whole
/// one.
class head_state {
 public:
  static std::int64_t bytes(operator_form form, state_dims const& dims) noexcept;
  head_state(operator_form form, state_dims const& dims, scratch& memory) noexcept;

  void load(tensor_view<float const, 2> state) noexcept;  ///< an empty view: zeros
  void store(tensor_view<float, 2> state) const noexcept;
  void settle() noexcept;

  void begin_body(head_summary<float const> const& so_far) noexcept;  ///< empty views: the identity
  void end_body(head_summary<float> const& out) noexcept;             ///< writes it and goes on without

  /// state <- T state + turn S0.
  void apply(head_summary<float const> const& body, rotation const* turn) noexcept;

  /// Columns that rows run through: all of them where the operator is dense; otherwise the running state's, since a
  /// row adds the same to the end state, and the operator is a sum of log decays.
  std::int64_t columns() const noexcept { return form_ == operator_form::dense ? columns_ : value_dim_; }
  matrix_view<float const> rounded() const noexcept { return rounded_; }
  std::int64_t operator_column() const noexcept { return operator_column_; }
  std::int64_t end_column() const noexcept { return end_column_; }

  /// state <- Diag(decay) state + keys^T updates, a decay a head (stride 0) or a key channel (stride 1).
  void advance(std::int64_t rows, double const* decay, std::int64_t decay_stride, matrix_view<double const> keys,
               matrix_view<double const> updates) noexcept;
  /// Adds a row's log gates to the operator of a scalar or diagonal family.
  void add_log_gates(double const* gates) noexcept;

 private:
  operator_form form_;
  std::int64_t key_dim_;
  std::int64_t value_dim_;
  std::int64_t log_elements_;
  std::int64_t columns_;
  std::int64_t end_column_ = 0;
  std::int64_t operator_column_;
  bool in_body_ = false;
  matrix_view<double> exact_;
  matrix_view<float> rounded_;
  double* log_decay_;
};

}  // namespace hypic::inline v0
