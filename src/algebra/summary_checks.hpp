// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/shapes.hpp"
#include "hypic/algebra/summary.hpp"

namespace hypic::inline v0 {

struct summary_names {
  char const* operators;
  char const* end_states;
};

template <class T>
status expect_summary(summary_names const& names, operator_form form, state_dims const& dims,
                      basic_summary_view<T> const& summary) noexcept {
  return first_failure(
      expect_shape(names.operators, summary.operators, {dims.value_heads, operator_elements(form, dims.key_dim)}),
      expect_shape(names.end_states, summary.end_states, {dims.value_heads, dims.key_dim, dims.value_dim}));
}

template <class Out, class In>
status expect_apart_summaries(char const* argument, Out const& out, In const& in) noexcept {
  return first_failure(expect_apart(argument, out.operators, in.operators),
                       expect_apart(argument, out.end_states, in.end_states));
}

}  // namespace hypic::inline v0
