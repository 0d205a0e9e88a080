// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/core/calls.hpp"
#include "hypic/cuda/rebase_keys.hpp"

namespace hypic::inline v0 {

/// How the work of a call is dealt to blocks. Of a block's threads those of one `y` share a row, element by element or
/// 16 bytes at a time, and each `x` keeps its place in the row from row to row, and with it its angles.
struct rebase_keys_grid {
  static constexpr std::int64_t threads = 256;  ///< of a block, at most
  static constexpr std::int64_t in_flight = 2;  ///< rows that a thread reads before it writes the first
  static constexpr std::int64_t passes = 4;     ///< how often it does
  std::int64_t x = 0, y = 0;
  std::int64_t rows = 0;             ///< of a block
  std::int64_t blocks_per_span = 0;  ///< at least 1
  bool vectors = false;              ///< whether entries whose bases allow it are read 16 bytes at a time
};

constexpr bool allows_vectors(rebase_keys_plan const& plan) noexcept {
  auto const width = 16 / size_of(plan.type);
  auto const& shape = plan.shape;
  auto const half = shape.pairing == rotary_pairing::rotate_half ? shape.rotary_pairs : 2 * shape.rotary_pairs;
  std::int64_t const together[] = {half,
                                   shape.key_dim,
                                   shape.value_dim,
                                   plan.cached_keys.row,
                                   plan.cached_keys.head,
                                   plan.cached_values.row,
                                   plan.cached_values.head,
                                   plan.placed_keys.row,
                                   plan.placed_keys.head,
                                   plan.placed_values.row,
                                   plan.placed_values.head,
                                   plan.pages.page_size > 0 ? plan.placed_keys.page : 0,
                                   plan.pages.page_size > 0 ? plan.placed_values.page : 0};
  return std::ranges::all_of(together, [&](std::int64_t elements) { return elements % width == 0; });
}

/// Of a plan whose shape and rows are checked.
constexpr rebase_keys_grid grid_of(rebase_keys_plan const& plan) noexcept {
  constexpr std::int64_t warp = 32;
  rebase_keys_grid grid{.vectors = allows_vectors(plan)};
  auto const elements = std::int64_t{plan.shape.kv_heads} * (plan.shape.key_dim + plan.shape.value_dim);
  auto const across = grid.vectors ? elements * size_of(plan.type) / 16 : elements;
  grid.x = std::min((across + warp - 1) / warp * warp, rebase_keys_grid::threads);
  grid.y = rebase_keys_grid::threads / grid.x;
  grid.rows = grid.y * rebase_keys_grid::in_flight * rebase_keys_grid::passes;
  grid.blocks_per_span = std::max<std::int64_t>(1, plan.rows / grid.rows + (plan.rows % grid.rows != 0 ? 1 : 0));
  return grid;
}

/// Launches the one kernel of a checked plan of at least one entry.
status launch_rebase_keys(rebase_keys_plan const& plan, rebase_span const* spans, device_exec const& ex) noexcept;

}  // namespace hypic::inline v0
