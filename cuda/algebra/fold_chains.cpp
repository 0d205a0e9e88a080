// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/fold_chains.hpp"

#include "core/shapes.hpp"
#include "cuda/algebra/fold_kernels.hpp"
#include "cuda/core/plan_checks.hpp"

namespace hypic::inline v0 {
namespace {

/// Rows of X that a thread block of the generic path holds in shared memory.
constexpr std::int32_t widest = 256;

}  // namespace

chain_plan plan_chains(operator_form form, state_dims const& dims, std::int64_t chains, bool composes) {
  return {.form = form,
          .dims = dims,
          .operator_head_stride = operator_elements(form, dims.key_dim),
          .end_state_head_stride = dims.state_elements(),
          .states = {dims.state_elements(), dims.value_dim, 1},
          .chains = chains,
          .composes = composes};
}

status validate(chain_plan const& plan) noexcept {
  if (plan.form > operator_form::dense) return {status::invalid_argument, "plan.form"};
  if (auto const s = validate(plan.dims); s != status::ok) return s;
  auto const checked = first_failure(
      expect_most("plan.dims.key_dim", plan.dims.key_dim, widest),
      expect_most("plan.dims.value_dim", plan.dims.value_dim, widest), expect_least("plan.chains", plan.chains, 0),
      expect_least("plan.operator_head_stride", plan.operator_head_stride,
                   operator_elements(plan.form, plan.dims.key_dim)),
      expect_least("plan.end_state_head_stride", plan.end_state_head_stride, plan.dims.state_elements()));
  if (checked != status::ok) return checked;
  // Of any kernel: a block for each head, value and key, at the most.
  if (auto const s = expect_grid("plan.chains", plan.chains, std::int64_t{plan.dims.value_heads} * widest);
      s != status::ok)
    return s;
  bool const stored = plan.stored == dtype::f32 || (plan.stored == dtype::f16 && plan.form == operator_form::dense);
  return stored ? status{status::ok} : status{status::unsupported, "plan.stored"};
}

status fold_chains(chain_plan const& plan, chain_tables const& tables, device_exec const& ex) {
  if (auto const s = validate(plan); s != status::ok) return s;
  if (auto const s = expect_exec(ex, 0); s != status::ok) return s;
  if (plan.chains == 0) return status::ok;
  if (tables.chains == nullptr) return {status::invalid_argument, "tables.chains"};
  if (tables.runs == nullptr) return {status::invalid_argument, "tables.runs"};
  auto const limits = current_device();
  if (!limits) return limits.error();
  auto const hopper = takes_hopper(ex, *limits, hopper_folds(plan));
  if (!hopper) return hopper.error();

  auto const told = tell(ex, "cuda.fold_chains");
  if (plan.form != operator_form::dense) return fold_decays(plan, tables, ex);
  return *hopper ? fold_dense_hopper(plan, tables, *limits, ex) : fold_dense_generic(plan, tables, ex);
}

}  // namespace hypic::inline v0
