// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/continue_tails.hpp"

#include "core/shapes.hpp"
#include "cuda/algebra/continue_tails_kernel.hpp"
#include "cuda/core/calls.hpp"
#include "cuda/core/plan_checks.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t most_slots = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t most_tail_rows = std::int64_t{1} << 20;
constexpr std::int64_t most_channels = std::int64_t{1} << 30;

/// Rows are read at any stride; what is written takes room of its own.
status check_strides(tail_plan const& plan) noexcept {
  auto const row = plan.tail_rows > 1 ? plan.channels : 0;
  return first_failure(
      expect_least("plan.raw_row", plan.raw_row, 0), expect_least("plan.cached_row", plan.cached_row, 0),
      expect_least("plan.cached_group", plan.cached_group, 0), expect_least("plan.tails_row", plan.tails_row, row),
      expect_least("plan.tails_span", plan.tails_span, plan.channels),
      expect_least("plan.pool_row", plan.pool_row, row),
      expect_least("plan.pool_slot", plan.pool_slot, plan.slots > 1 ? plan.channels : 0));
}

}  // namespace

tail_plan plan_tails(dtype type, std::int64_t tail_rows, std::int64_t channels, std::int64_t slots,
                     std::int64_t chains) noexcept {
  return {.type = type,
          .tail_rows = tail_rows,
          .channels = channels,
          .raw_row = channels,
          .cached_row = channels,
          .tails_span = tail_rows * channels,
          .tails_row = channels,
          .pool_slot = tail_rows * channels,
          .pool_row = channels,
          .slots = slots,
          .chains = chains};
}

status validate(tail_plan const& plan) noexcept {
  if (plan.type > dtype::bf16) return {status::invalid_argument, "plan.type"};
  auto const checked = first_failure(
      expect_least("plan.tail_rows", plan.tail_rows, 0), expect_most("plan.tail_rows", plan.tail_rows, most_tail_rows),
      expect_least("plan.channels", plan.channels, 1), expect_most("plan.channels", plan.channels, most_channels),
      expect_least("plan.groups", plan.groups, 1), expect_least("plan.slots", plan.slots, 0),
      expect_most("plan.slots", plan.slots, most_slots), expect_least("plan.chains", plan.chains, 0));
  if (checked != status::ok) return checked;
  if (plan.channels % plan.groups != 0)
    return {status::invalid_shape, "plan.channels", plan.channels, status::relation::multiple_of, plan.groups};
  if (plan.tail_rows == 0) return status::ok;  // a convolution of length 1 has no tail, whatever its strides
  return first_failure(check_strides(plan), expect_grid("plan.chains", plan.chains, blocks_per_chain(plan)));
}

status continue_tails(tail_plan const& plan, tail_tables const& tables, device_exec const& ex) {
  if (auto const s = first_failure(validate(plan), expect_exec(ex, 0)); s != status::ok) return s;
  if (plan.chains == 0 || plan.tail_rows == 0) return status::ok;
  if (tables.chains == nullptr) return {status::invalid_argument, "tables.chains"};
  if (tables.spans == nullptr) return {status::invalid_argument, "tables.spans"};
  if (tables.raw == nullptr) return {status::invalid_argument, "tables.raw"};
  if (tables.pool == nullptr && plan.slots > 0) return {status::invalid_argument, "tables.pool"};
  if (auto const s = expect_path(ex); s != status::ok) return s;
  auto const told = tell(ex, "cuda.continue_tails");
  return launch_continue_tails(plan, tables, ex);
}

}  // namespace hypic::inline v0
