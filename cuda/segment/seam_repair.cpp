// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/seam_repair.hpp"

#include <cmath>
#include <utility>

#include "core/shapes.hpp"
#include "cuda/core/plan_checks.hpp"
#include "cuda/segment/seam_walk.hpp"

namespace hypic::inline v0 {
namespace {

layer_row_strides dense_rows(family_id family, state_dims const& dims) {
  auto const gate = with_family(family, [&]<class F>(F) { return gate_elements<F>(dims.key_dim); });
  std::int64_t const keys = std::int64_t{dims.key_heads} * dims.key_dim;
  std::int64_t const values = std::int64_t{dims.value_heads} * dims.value_dim;
  return {.q = {keys, dims.key_dim},
          .k = {keys, dims.key_dim},
          .v = {values, dims.value_dim},
          .gates = {dims.value_heads * gate, gate},
          .beta = {dims.value_heads, 1}};
}

operator_form form_of(family_id family) {
  return with_family(family, []<class F>(F) { return F::form; });
}

}  // namespace

device_repair_plan plan_device_repair(family_id family, state_dims const& dims, row_options const& options, dtype rows,
                                      std::int64_t total_rows, std::int64_t slots, std::int64_t chains) {
  auto const strides = dense_rows(family, dims);
  return {.family = family,
          .dims = dims,
          .options = options,
          .rows = rows,
          .inputs = strides,
          .head = strides,
          .output = {strides.v[0], strides.v[1]},
          .operator_head_stride = operator_elements(form_of(family), dims.key_dim),
          .end_state_head_stride = dims.state_elements(),
          .states = {dims.state_elements(), dims.value_dim, 1},
          .slot_stride = dims.value_heads * dims.state_elements(),
          .slots = slots,
          .total_rows = total_rows,
          .chains = chains};
}

status validate(device_repair_plan const& plan) noexcept {
  if (plan.family > family_id::kda) return {status::invalid_argument, "plan.family"};
  if (auto const s = validate(plan.dims); s != status::ok) return s;
  constexpr std::int32_t widest = 256;
  if (auto const s = expect_most("plan.dims.key_dim", plan.dims.key_dim, widest); s != status::ok) return s;
  if (!std::isfinite(plan.options.q_scale)) return {status::invalid_argument, "plan.options.q_scale"};
  if (!std::isfinite(plan.options.l2_epsilon)) return {status::invalid_argument, "plan.options.l2_epsilon"};
  if (plan.options.gates > gate_space::linear) return {status::invalid_argument, "plan.options.gates"};
  if (plan.rows > dtype::bf16) return {status::invalid_argument, "plan.rows"};
  auto const checked = first_failure(
      expect_least("plan.total_rows", plan.total_rows, 0), expect_least("plan.slots", plan.slots, 0),
      expect_least("plan.chains", plan.chains, 0), expect_least("plan.rotary_pairs", plan.rotary_pairs, 0),
      expect_least("plan.operator_head_stride", plan.operator_head_stride,
                   operator_elements(form_of(plan.family), plan.dims.key_dim)),
      expect_least("plan.end_state_head_stride", plan.end_state_head_stride, plan.dims.state_elements()));
  if (checked != status::ok) return checked;
  if (auto const s = expect_grid("plan.chains", plan.chains, plan.dims.value_heads); s != status::ok) return s;
  if (plan.rotary_pairs > 0 && form_of(plan.family) != operator_form::scalar)
    return {status::unsupported, "plan.rotary_pairs: turns under this family's operators"};
  if (2 * std::int64_t{plan.rotary_pairs} > plan.dims.key_dim)
    return {status::invalid_shape, "plan.rotary_pairs", plan.rotary_pairs, status::relation::at_most,
            plan.dims.key_dim / 2};
  return status::ok;
}

status seam_repair(device_repair_plan const& plan, repair_tables const& tables, device_exec const& ex) {
  if (auto const s = validate(plan); s != status::ok) return s;
  if (auto const s = expect_exec(ex, 0); s != status::ok) return s;
  if (plan.chains == 0) return status::ok;
  bool const delta = with_family(plan.family, []<class F>(F) { return F::delta_rule; });
  std::pair<char const*, void const*> const needed[] = {{"tables.spans", tables.spans},
                                                        {"tables.chains", tables.chains},
                                                        {"tables.inputs.k", tables.inputs.k},
                                                        {"tables.inputs.v", tables.inputs.v},
                                                        {"tables.inputs.gates", tables.inputs.gates}};
  for (auto const& [name, pointer] : needed)
    if (pointer == nullptr) return {status::invalid_argument, name};
  if (delta && tables.inputs.beta == nullptr) return {status::invalid_argument, "tables.inputs.beta"};
  if (tables.o != nullptr && tables.inputs.q == nullptr) return {status::invalid_argument, "tables.inputs.q"};
  if (auto const s = expect_path(ex); s != status::ok) return s;

  auto const told = tell(ex, "cuda.seam_repair");
  walk_shape const shape{.form = form_of(plan.family),
                         .delta_rule = delta,
                         .gate_per_channel = with_family(plan.family, []<class F>(F) { return F::gate_per_channel; })};
  return walk_seams(plan, shape, tables, ex);
}

}  // namespace hypic::inline v0
