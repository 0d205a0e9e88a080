// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/core/calls.hpp"
#include "hypic/cuda/fold_chains.hpp"

/// The launchers behind `fold_chains`. Each takes a checked plan.
namespace hypic::inline v0 {

/// Scalar and diagonal operators: bound by memory, one kernel for every device.
status fold_decays(chain_plan const& plan, chain_tables const& tables, device_exec const& ex) noexcept;

/// Dense operators of any shape, in fp32 arithmetic.
status fold_dense_generic(chain_plan const& plan, chain_tables const& tables, device_exec const& ex) noexcept;

/// Dense operators of the shape that `hopper_folds` names, on tensor cores.
status fold_dense_hopper(chain_plan const& plan, chain_tables const& tables, device_limits const& limits,
                         device_exec const& ex) noexcept;

/// Whether the Hopper path has a kernel for the plan. Decays have one kernel, which serves on either path.
constexpr bool hopper_folds(chain_plan const& plan) noexcept {
  return plan.form != operator_form::dense ||
         (plan.stored == dtype::f32 && plan.dims.key_dim == 128 && plan.dims.value_dim == 128);
}

}  // namespace hypic::inline v0
