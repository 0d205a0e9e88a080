// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "hypic/family/family.hpp"

namespace hypic::inline v0 {

/// The state of one head, or some of its columns, as the steps of a family see it: fp64, row-major, `key_dim` rows.
struct step_state {
  double* data = nullptr;
  std::int32_t key_dim = 0;
  std::int32_t columns = 0;

  constexpr double& operator()(std::int64_t d, std::int64_t column) const noexcept {
    return data[d * columns + column];
  }
};

/// A family of a host's own, given by what one token does to the state of one head, S <- A S + B. From these two steps
/// follow outputs, states and operators (run_steps), and from its form composition (algebra).
///   row                    what one token brings to one head
///   transition(row, state) state <- A state. Linear; the same for each column, however many there are
///   update(row, state)     state <- state + B, all Dv columns. B depends on the row alone
/// The operator is dense: any linear step has one. `check_laws` says whether the steps keep to all this.
template <class F>
concept step_family =
    operator_family<F> && F::form == operator_form::dense && requires(typename F::row const& row, step_state state) {
      { F::transition(row, state) } noexcept;
      { F::update(row, state) } noexcept;
    };

}  // namespace hypic::inline v0
