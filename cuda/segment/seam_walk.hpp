// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/core/calls.hpp"
#include "hypic/cuda/seam_repair.hpp"

namespace hypic::inline v0 {

/// A family by what its rows and bodies do.
struct walk_shape {
  operator_form form;
  bool delta_rule;
  bool gate_per_channel;
};

/// The launcher behind `seam_repair`, for a checked plan: one kernel in fp32 arithmetic, on either path.
status walk_seams(device_repair_plan const& plan, walk_shape const& shape, repair_tables const& tables,
                  device_exec const& ex) noexcept;

}  // namespace hypic::inline v0
