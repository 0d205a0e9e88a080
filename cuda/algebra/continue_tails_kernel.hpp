// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/core/calls.hpp"
#include "hypic/cuda/continue_tails.hpp"

namespace hypic::inline v0 {

/// A block has so many channels of one chain.
inline constexpr std::int64_t tail_channels_of_block = 32;

constexpr std::int64_t blocks_per_chain(tail_plan const& plan) noexcept {
  return (plan.channels + tail_channels_of_block - 1) / tail_channels_of_block;
}

/// Launches the one kernel of a checked plan of at least one chain.
status launch_continue_tails(tail_plan const& plan, tail_tables const& tables, device_exec const& ex) noexcept;

}  // namespace hypic::inline v0
