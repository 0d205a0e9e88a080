// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hypic/segment/run_steps.hpp"

namespace hypic::inline v0 {

/// One law of a family and how far its steps are from it, relative (Frobenius, or the largest element for a single
/// step).
struct law_report {
  char const* law = "";
  double error = 0.0;
  double bound = 0.0;
  bool holds() const noexcept { return error <= bound; }  // false for a NaN
};

namespace laws_detail {

/// |found - wanted| / |wanted|, the norm of `wanted` being at least 1e-30. NaN where an element is.
HYPIC_API double distance(std::span<double const> found, std::span<double const> wanted) noexcept;
HYPIC_API double distance(std::span<float const> found, std::span<float const> wanted) noexcept;

/// A NaN is the worst of all and stays.
HYPIC_API void keep_worst(double& worst, double error) noexcept;

/// Numbers of either sign below 1 that no step is likely to be blind to.
HYPIC_API double sample(std::int64_t i) noexcept;

inline constexpr auto not_a_number = std::numeric_limits<float>::quiet_NaN();

/// A summary and the state that goes through it, with memory of their own.
struct run_result {
  explicit run_result(state_dims const& dims)
      : shape(dims),
        op(static_cast<std::size_t>(dims.value_heads * operator_elements(operator_form::dense, dims.key_dim))),
        end_state(static_cast<std::size_t>(dims.value_heads * dims.state_elements())),
        state(end_state) {
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(sample(static_cast<std::int64_t>(i)));
  }
  summary_view summary() {
    return {dense_view(op.data(), shape.value_heads, operator_elements(operator_form::dense, shape.key_dim)),
            dense_view(end_state.data(), shape.value_heads, shape.key_dim, shape.value_dim)};
  }
  tensor_view<float, 3> states() { return dense_view(state.data(), shape.value_heads, shape.key_dim, shape.value_dim); }

  state_dims shape;
  std::vector<float> op;
  std::vector<float> end_state;
  std::vector<float> state;
};

/// How far `found` is from `wanted`, the worse of T and S0.
inline double distance(run_result const& found, run_result const& wanted) {
  auto worst = distance(found.op, wanted.op);
  keep_worst(worst, distance(found.end_state, wanted.end_state));
  return worst;
}

template <step_family F, class RowAt>
run_result run(state_dims const& dims, std::int64_t first, std::int64_t tokens, RowAt& row_at) {
  run_result out(dims);
  std::vector<std::byte> memory(static_cast<std::size_t>(step_workspace_bytes(dims)));
  auto const shifted = [&](std::int64_t t, std::int32_t head) { return row_at(first + t, head); };
  auto const outcome = run_steps<F>(dims, tokens, shifted, {}, {.states = out.states(), .summary = out.summary()},
                                    {.workspace = memory});
  if (outcome != status::ok) out.op.assign(out.op.size(), not_a_number);
  return out;
}

/// The laws of one step, over all tokens of the first head; the largest error of each.
template <step_family F, class RowAt>
void step_errors(state_dims const& dims, std::int64_t tokens, RowAt& row_at, double& linear, double& columns,
                 double& constant) {
  auto const elements = static_cast<std::size_t>(dims.state_elements());
  std::vector<double> x(elements), y(elements), zero(elements), sum(elements),
      column(static_cast<std::size_t>(dims.key_dim));
  auto const whole = [&](std::vector<double>& of) { return step_state{of.data(), dims.key_dim, dims.value_dim}; };
  for (std::int64_t t = 0; t < tokens; ++t) {
    typename F::row const row = row_at(t, 0);
    for (std::size_t i = 0; i < elements; ++i) {
      x[i] = sample(static_cast<std::int64_t>(2 * i));
      y[i] = sample(static_cast<std::int64_t>(2 * i + 1));
      zero[i] = 0.0;
      sum[i] = x[i] - 2.0 * y[i];
    }
    auto const before = x;
    F::transition(row, whole(x));
    F::transition(row, whole(y));
    F::transition(row, whole(zero));
    F::transition(row, whole(sum));
    std::vector<double> wanted(elements);
    for (std::size_t i = 0; i < elements; ++i) wanted[i] = x[i] - 2.0 * y[i];
    keep_worst(linear, distance(sum, wanted));
    keep_worst(linear, distance(zero, std::vector<double>(elements)) > 0.0 ? 1.0 : 0.0);

    auto const dv = static_cast<std::size_t>(dims.value_dim);
    for (std::size_t c = 0; c < dv; ++c) {
      std::vector<double> alone(column.size());
      for (std::size_t d = 0; d < column.size(); ++d) {
        column[d] = before[d * dv + c];
        alone[d] = x[d * dv + c];
      }
      F::transition(row, {column.data(), dims.key_dim, 1});
      keep_worst(columns, distance(column, alone));
    }

    std::vector<double> from_zero(elements), from_x = before;
    F::update(row, whole(from_zero));
    F::update(row, whole(from_x));
    for (std::size_t i = 0; i < elements; ++i) from_x[i] -= before[i];
    keep_worst(constant, distance(from_x, from_zero));
  }
}

}  // namespace laws_detail

/// Holds a family's steps against what a step family promises, on `tokens` rows of the caller's choice. For tests and
/// for the start of a program: it allocates, and takes time that grows with the square of `tokens`.
///   "a transition is linear"             A (x - 2 y) = A x - 2 A y, and A 0 = 0
///   "columns go alone"                   each column through A by itself is what it is among the others
///   "an update does not read the state"  it adds the same B to any state
///   "a split run composes"               at every position, later after earlier is the whole run, to 1e-5
///   "an operator stands for its run"     T S + S0 is the state that the steps leave when they start from S, to 1e-5
template <step_family F, class RowAt>
std::array<law_report, 5> check_laws(state_dims const& dims, std::int64_t tokens, RowAt&& row_at) {
  std::array<law_report, 5> reports{{{"a transition is linear", 0.0, 1e-12},
                                     {"columns go alone", 0.0, 1e-12},
                                     {"an update does not read the state", 0.0, 1e-12},
                                     {"a split run composes", 0.0, 1e-5},
                                     {"an operator stands for its run", 0.0, 1e-5}}};
  laws_detail::step_errors<F>(dims, tokens, row_at, reports[0].error, reports[1].error, reports[2].error);

  auto whole = laws_detail::run<F>(dims, 0, tokens, row_at);
  laws_detail::run_result composed(dims);
  for (std::int64_t split = 0; split <= tokens; ++split) {
    auto earlier = laws_detail::run<F>(dims, 0, split, row_at);
    auto later = laws_detail::run<F>(dims, split, tokens - split, row_at);
    auto const outcome = compose<F>(dims, later.summary(), earlier.summary(), composed.summary(), {});
    auto const error =
        outcome == status::ok ? laws_detail::distance(composed, whole) : static_cast<double>(laws_detail::not_a_number);
    laws_detail::keep_worst(reports[3].error, error);
  }

  laws_detail::run_result start(dims), applied(dims);
  auto const outcome = apply<F>(dims, whole.summary(), start.states(), applied.states(), {});
  reports[4].error = outcome == status::ok ? laws_detail::distance(applied.state, whole.state)
                                           : static_cast<double>(laws_detail::not_a_number);
  return reports;
}

}  // namespace hypic::inline v0
