// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/core/calls.hpp"
#include "hypic/cuda/rebase_states.hpp"

namespace hypic::inline v0 {

/// How the work of a call is dealt to blocks. An item is a pair of key channels, or a channel that does not turn, at one
/// value; a block has some of one head.
struct rebase_states_grid {
  static constexpr int threads = 256;
  static constexpr int in_flight = 4;  ///< items that a thread reads before it writes the first
  std::int64_t items = 0;              ///< of a head
  std::int64_t blocks_per_head = 0;
};

/// Of a plan whose dimensions and pairs are checked.
constexpr rebase_states_grid grid_of(rebase_states_plan const& plan) noexcept {
  constexpr std::int64_t of_block = rebase_states_grid::threads * rebase_states_grid::in_flight;
  auto const items = (std::int64_t{plan.dims.key_dim} - plan.rotary_pairs) * plan.dims.value_dim;
  return {.items = items, .blocks_per_head = (items + of_block - 1) / of_block};
}

/// Launches the one kernel of a checked plan of at least one entry.
status launch_rebase_states(rebase_states_plan const& plan, rebase_state const* states, device_exec const& ex) noexcept;

}  // namespace hypic::inline v0
