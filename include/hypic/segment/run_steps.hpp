// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "hypic/algebra/summary.hpp"
#include "hypic/core/exec.hpp"
#include "hypic/family/step_family.hpp"

namespace hypic::inline v0 {

/// Where a run of steps writes. Every member may be empty.
struct step_outputs {
  tensor_view<float, 3> o{};       ///< [tokens, value_heads, Dv]: S^T q after each token
  tensor_view<float, 3> states{};  ///< [value_heads, Dk, Dv]: the states that the run goes on from, and leaves
  summary_view summary{};          ///< (T, S0) of the run
};

/// Scratch of `run_steps`.
constexpr std::int64_t step_workspace_bytes(state_dims const& dims) noexcept {
  auto const doubles = std::int64_t{dims.key_dim} * (2 * std::int64_t{dims.value_dim} + dims.key_dim);
  return doubles * std::int64_t{sizeof(double)} + std::int64_t{alignof(double)};
}

/// Checks what `run_steps` is given. Errors: those of `run_steps`.
HYPIC_API status check_steps(state_dims const& dims, std::int64_t tokens, tensor_view<float const, 3> q,
                             step_outputs const& out, host_exec const& ex) noexcept;

/// Runs tokens of one layer through a family's steps, one after another in fp64: what a family needs to be right, for
/// its author to be fast later.
/// Shapes:     q [tokens, key_heads, Dk], scaled already; empty where `o` is. `row_at(token, value_head)` gives a F::row.
///             Without `states` a run starts from zero.
/// Guarantees: no allocation; on the caller's thread; rounds states and operators to fp32 once, at the end.
/// Errors:     invalid_shape, workspace_too_small (below step_workspace_bytes).
template <step_family F, class RowAt>
status run_steps(state_dims const& dims, std::int64_t tokens, RowAt&& row_at, tensor_view<float const, 3> q,
                 step_outputs const& out, host_exec const& ex) {
  if (auto const s = check_steps(dims, tokens, q, out, ex); s != status::ok) return s;
  if (ex.watch != nullptr) ex.watch->count("segment.run_steps", 1);
  watched_range const range(ex.watch, "segment.run_steps");
  auto const dk = dims.key_dim;
  auto const dv = dims.value_dim;
  auto const past = reinterpret_cast<std::uintptr_t>(ex.workspace.data()) % alignof(double);
  auto* const memory = reinterpret_cast<double*>(ex.workspace.data() + (past == 0 ? 0 : alignof(double) - past));
  step_state const state{memory, dk, dv};
  step_state const end_state{memory + dims.state_elements(), dk, dv};
  step_state const op{memory + 2 * dims.state_elements(), dk, dk};
  bool const with_outputs = !out.o.empty(), with_states = !out.states.empty(), with_summary = !out.summary.empty();
  auto const each = [](step_state const& of, auto fn) {
    for (std::int32_t d = 0; d < of.key_dim; ++d)
      for (std::int32_t c = 0; c < of.columns; ++c) fn(d, c, of(d, c));
  };

  for (std::int32_t head = 0; head < dims.value_heads; ++head) {
    each(state,
         [&](auto d, auto c, double& x) { x = with_states ? static_cast<double>(out.states(head, d, c)) : 0.0; });
    each(end_state, [](auto, auto, double& x) { x = 0.0; });
    each(op, [](auto d, auto c, double& x) { x = d == c ? 1.0 : 0.0; });
    for (std::int64_t t = 0; t < tokens; ++t) {
      typename F::row const row = row_at(t, head);
      if (with_outputs || with_states) {
        F::transition(row, state);
        F::update(row, state);
      }
      if (with_summary) {
        F::transition(row, op);
        F::transition(row, end_state);
        F::update(row, end_state);
      }
      if (!with_outputs) continue;
      for (std::int32_t c = 0; c < dv; ++c) {
        double sum = 0.0;
        for (std::int32_t d = 0; d < dk; ++d) sum += static_cast<double>(q(t, dims.key_head_of(head), d)) * state(d, c);
        out.o(t, head, c) = static_cast<float>(sum);
      }
    }
    if (with_states) each(state, [&](auto d, auto c, double x) { out.states(head, d, c) = static_cast<float>(x); });
    if (!with_summary) continue;
    each(end_state, [&](auto d, auto c, double x) { out.summary.end_states(head, d, c) = static_cast<float>(x); });
    each(op, [&](auto d, auto c, double x) {
      out.summary.operators(head, std::int64_t{d} * dk + c) = static_cast<float>(x);
    });
  }
  return status::ok;
}

}  // namespace hypic::inline v0
