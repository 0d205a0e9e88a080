// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/rebase_states.hpp"

#include "core/shapes.hpp"
#include "cuda/algebra/rebase_states_kernel.hpp"
#include "cuda/core/calls.hpp"
#include "cuda/core/plan_checks.hpp"

namespace hypic::inline v0 {
namespace {

/// Within it a head's elements are counted in 32 bits.
constexpr std::int64_t most_elements = std::int64_t{1} << 30;

status check_strides(rebase_states_plan const& plan) noexcept {
  auto const& out = plan.out;
  // Two elements of an output are never one; of an input they may be.
  auto const least = [](std::int64_t extent) { return extent > 1 ? 1 : 0; };
  return first_failure(expect_least("plan.in.head", plan.in.head, 0), expect_least("plan.in.key", plan.in.key, 0),
                       expect_least("plan.in.value", plan.in.value, 0),
                       expect_least("plan.out.head", out.head, least(plan.dims.value_heads)),
                       expect_least("plan.out.key", out.key, least(plan.dims.key_dim)),
                       expect_least("plan.out.value", out.value, least(plan.dims.value_dim)));
}

}  // namespace

rebase_states_plan plan_rebase_states(state_dims const& dims, std::int32_t rotary_pairs, rotary_pairing pairing,
                                      std::int64_t states) noexcept {
  state_strides const dense{dims.state_elements(), dims.value_dim, 1};
  return {.dims = dims, .rotary_pairs = rotary_pairs, .pairing = pairing, .in = dense, .out = dense, .states = states};
}

status validate(rebase_states_plan const& plan) noexcept {
  if (auto const s = validate(plan.dims); s != status::ok) return s;
  if (plan.pairing > rotary_pairing::interleaved) return {status::invalid_argument, "plan.pairing"};
  auto const pairs = std::int64_t{plan.rotary_pairs};
  if (2 * pairs > plan.dims.key_dim)
    return {status::invalid_shape, "plan.rotary_pairs", pairs, status::relation::at_most, plan.dims.key_dim / 2};
  auto const checked =
      first_failure(expect_least("plan.rotary_pairs", pairs, 0),
                    expect_most("plan.dims.value_dim", plan.dims.value_dim, most_elements / plan.dims.key_dim),
                    check_strides(plan), expect_least("plan.states", plan.states, 0));
  if (checked != status::ok) return checked;
  return expect_grid("plan.states", plan.states, grid_of(plan).blocks_per_head * plan.dims.value_heads);
}

status rebase_states(rebase_states_plan const& plan, rebase_state const* states, device_exec const& ex) {
  if (auto const s = first_failure(validate(plan), expect_exec(ex, 0)); s != status::ok) return s;
  if (plan.states == 0) return status::ok;
  if (states == nullptr) return {status::invalid_argument, "states"};
  if (auto const s = expect_path(ex); s != status::ok) return s;
  auto const told = tell(ex, "cuda.rebase_states");
  return launch_rebase_states(plan, states, ex);
}

}  // namespace hypic::inline v0
