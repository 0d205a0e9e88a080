// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/run_steps.hpp"

#include "algebra/summary_checks.hpp"
#include "core/calls.hpp"
#include "core/shapes.hpp"

namespace hypic::inline v0 {

status check_steps(state_dims const& dims, std::int64_t tokens, tensor_view<float const, 3> q, step_outputs const& out,
                   host_exec const& ex) noexcept {
  if (tokens < 0) return {status::invalid_shape, "tokens", tokens, status::relation::at_least, 0};
  auto checked = first_failure(validate(dims), expect_exec(ex, step_workspace_bytes(dims)));
  if (checked == status::ok && !out.o.empty()) {
    checked = first_failure(expect_shape("q", q, {tokens, dims.key_heads, dims.key_dim}),
                            expect_shape("out.o", out.o, {tokens, dims.value_heads, dims.value_dim}));
  }
  if (checked == status::ok && !out.states.empty()) {
    checked =
        expect_shape("out.states", out.states, {dims.value_heads, dims.key_dim, dims.value_dim}, last_stride::any);
  }
  if (checked == status::ok && !out.summary.empty()) {
    checked =
        expect_summary({"out.summary.operators", "out.summary.end_states"}, operator_form::dense, dims, out.summary);
  }
  return checked;
}

}  // namespace hypic::inline v0
