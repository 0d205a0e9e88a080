// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "hypic/core/exec.hpp"
#include "hypic/core/tensor_view.hpp"
#include "hypic/family/family.hpp"

/// The algebra of segments. Every linear layer maps its state affinely, S_out = T S_in + S0; a run of tokens is summed
/// up by (T, S0), and runs compose: T = T_later T_earlier, S0 = T_later S0_earlier + S0_later. Neutral: (I, 0).
/// Source: HYPIC, arXiv:2607.01299, on cached transitions.
///
/// The algebra needs of a family no more than the form of its operators: each function takes a form, or a family that
/// has one. All of them refuse a form that is none with invalid_argument.
namespace hypic::inline v0 {

/// What a run of tokens does to the states of one layer. T is `float` or `float const`.
/// Shapes: operators [value_heads, operator_elements(form)], end_states [value_heads, Dk, Dv]. Last strides are 1; a
///         dense operator is row-major within its head.
/// Units:  scalar and diagonal operators are sums of natural-log decays, -inf for a reset.
template <class T>
struct basic_summary_view {
  tensor_view<T, 2> operators{};
  tensor_view<T, 3> end_states{};

  constexpr bool empty() const noexcept { return operators.empty() && end_states.empty(); }
  constexpr operator basic_summary_view<T const>() const noexcept  // NOLINT
    requires(!std::is_const_v<T>)
  {
    return {operators, end_states};
  }
};
using summary_view = basic_summary_view<float>;
using const_summary_view = basic_summary_view<float const>;

/// Writes the neutral element (I, 0), the summary of no tokens.
/// Shapes:  as of `basic_summary_view` for `dims`. Errors: invalid_shape.
HYPIC_API status set_identity(operator_form form, state_dims const& dims, summary_view out, host_exec const& ex);
template <operator_family F>
status set_identity(state_dims const& dims, summary_view out, host_exec const& ex) {
  return set_identity(F::form, dims, out, ex);
}

/// out = later after earlier.
/// Shapes:     as of `basic_summary_view` for `dims`; `out` must not overlap an input.
/// Cost:       dense: 2 Dk^2 (Dk + Dv) FLOP a head; otherwise Dk Dv.
/// Guarantees: no allocation; the same bits for any number of threads.
/// Errors:     invalid_shape, also where `out` starts where an input does.
HYPIC_API status compose(operator_form form, state_dims const& dims, const_summary_view later,
                         const_summary_view earlier, summary_view out, host_exec const& ex);
template <operator_family F>
status compose(state_dims const& dims, const_summary_view later, const_summary_view earlier, summary_view out,
               host_exec const& ex) {
  return compose(F::form, dims, later, earlier, out, ex);
}

/// out = T in + S0, the state after the run that `summary` sums up.
/// Shapes:  in, out [value_heads, Dk, Dv], any strides; `out` must not overlap an input.
/// Errors:  invalid_shape, also where `out` starts where an input does.
HYPIC_API status apply(operator_form form, state_dims const& dims, const_summary_view summary,
                       tensor_view<float const, 3> in, tensor_view<float, 3> out, host_exec const& ex);
template <operator_family F>
status apply(state_dims const& dims, const_summary_view summary, tensor_view<float const, 3> in,
             tensor_view<float, 3> out, host_exec const& ex) {
  return apply(F::form, dims, summary, in, out, ex);
}

/// The summaries of many runs, oldest first.
/// Shapes: operators [runs, value_heads, operator_elements(form)], end_states [runs, value_heads, Dk, Dv].
template <class T>
struct basic_summaries_view {
  tensor_view<T, 3> operators{};
  tensor_view<T, 4> end_states{};

  constexpr bool empty() const noexcept { return operators.empty() && end_states.empty(); }
  constexpr basic_summary_view<T> operator[](std::int64_t run) const noexcept {
    return {operators[run], end_states[run]};
  }
};
using summaries_view = basic_summaries_view<float>;
using const_summaries_view = basic_summaries_view<float const>;

/// Scratch of `fold`. Zero where all prefixes are asked for.
HYPIC_API std::int64_t fold_workspace_bytes(operator_form form, state_dims const& dims, int threads) noexcept;

/// Folds runs in order, oldest first: out = run[n-1] after ... after run[0].
/// Shapes:     out of one summary; `prefixes`, empty or shaped like `runs`: prefixes[i] = run[i] after ... after run[0].
///             No output overlaps an input or another output. `out` may be empty where prefixes are asked for.
///             No runs give the neutral element.
/// Guarantees: left fold, in one fixed order; no allocation; the same bits for any number of threads.
/// Errors:     invalid_shape, also where an output starts where an input or another output does;
///             workspace_too_small (below fold_workspace_bytes).
HYPIC_API status fold(operator_form form, state_dims const& dims, const_summaries_view runs, summary_view out,
                      summaries_view prefixes, host_exec const& ex);
template <operator_family F>
status fold(state_dims const& dims, const_summaries_view runs, summary_view out, summaries_view prefixes,
            host_exec const& ex) {
  return fold(F::form, dims, runs, out, prefixes, ex);
}

}  // namespace hypic::inline v0
