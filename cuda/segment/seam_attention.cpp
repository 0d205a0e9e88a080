// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/seam_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/scratch.hpp"
#include "core/shapes.hpp"
#include "cuda/core/plan_checks.hpp"
#include "cuda/segment/attention_kernels.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t widest = 256;
constexpr std::int64_t most_splits = 65'535;  // the grid's limit

status expect_multiple(char const* argument, std::int64_t found, std::int64_t of) noexcept {
  if (found % of == 0) return status::ok;
  return {status::invalid_shape, argument, found, status::relation::multiple_of, of};
}

status check_dim(char const* argument, std::int64_t dim) noexcept {
  return first_failure(expect_least(argument, dim, 16), expect_multiple(argument, dim, 16),
                       expect_most(argument, dim, widest));
}

/// Of a stride: `least` 0 for what is read, and for what is written one that keeps its elements apart.
status check_stride(char const* argument, dtype type, std::int64_t stride, std::int64_t least) noexcept {
  return first_failure(expect_least(argument, stride, least), expect_multiple(argument, stride, 16 / size_of(type)));
}

status check_strides(device_attention_plan const& plan) noexcept {
  auto const check = [&](char const* argument, std::int64_t stride, std::int64_t least = 0) {
    return check_stride(argument, plan.type, stride, least);
  };
  return first_failure(check("plan.q.row", plan.q.row), check("plan.q.head", plan.q.head),
                       check("plan.o.row", plan.o.row, plan.value_dim),
                       check("plan.o.head", plan.o.head, plan.value_dim), check("plan.keys.page", plan.keys.page),
                       check("plan.keys.token", plan.keys.token), check("plan.keys.head", plan.keys.head),
                       check("plan.values.page", plan.values.page), check("plan.values.token", plan.values.token),
                       check("plan.values.head", plan.values.head));
}

status check_capacities(device_attention_plan const& plan) noexcept {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
  return first_failure(
      expect_least("plan.page_size", plan.page_size, 0), expect_most("plan.page_size", plan.page_size, most),
      expect_least("plan.total_rows", plan.total_rows, 0),
      expect_most("plan.total_rows", plan.total_rows, most / 2 / plan.query_heads),
      expect_least("plan.requests", plan.requests, 0), expect_most("plan.requests", plan.requests, most),
      expect_least("plan.most_keys", plan.most_keys, 0),
      expect_most("plan.most_keys", plan.most_keys, most_splits * split_keys));
}

status check_tables(device_attention_tables const& tables) noexcept {
  auto const aligned = [](void const* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  if (tables.requests == nullptr) return {status::invalid_argument, "tables.requests"};
  if (tables.positions == nullptr) return {status::invalid_argument, "tables.positions"};
  if (tables.q == nullptr || !aligned(tables.q)) return {status::invalid_argument, "tables.q"};
  if (tables.o == nullptr || !aligned(tables.o)) return {status::invalid_argument, "tables.o"};
  return status::ok;
}

/// Queries times splits: partial results of a call.
std::int64_t partials_of(device_attention_plan const& plan) noexcept {
  return splits_of(plan) * plan.total_rows * plan.query_heads;
}

}  // namespace

std::int64_t device_attention_plan::workspace_bytes() const noexcept {
  if (splits_of(*this) == 1) return 0;
  auto const partials = partials_of(*this);
  return scratch_alignment + scratch_bytes<float>(partials * value_dim) + scratch_bytes<float2>(partials);
}

std::int32_t device_attention_plan::kernels() const noexcept {
  if (total_rows == 0 || requests == 0) return 0;
  return splits_of(*this) == 1 ? 1 : 2;
}

device_attention_plan with_dense_strides(device_attention_plan plan) noexcept {
  auto const rows = [](std::int64_t heads, std::int64_t dim) { return row_strides{heads * dim, dim}; };
  auto const cache = [&](std::int64_t dim) {
    return cache_strides{plan.page_size * plan.kv_heads * dim, plan.kv_heads * dim, dim};
  };
  plan.q = rows(plan.query_heads, plan.key_dim);
  plan.o = rows(plan.query_heads, plan.value_dim);
  plan.keys = cache(plan.key_dim);
  plan.values = cache(plan.value_dim);
  return plan;
}

status validate(device_attention_plan const& plan) noexcept {
  if (plan.type > dtype::bf16) return {status::invalid_argument, "plan.type"};
  auto const shape = first_failure(
      expect_least("plan.query_heads", plan.query_heads, 1), expect_least("plan.kv_heads", plan.kv_heads, 1),
      check_dim("plan.key_dim", plan.key_dim), check_dim("plan.value_dim", plan.value_dim));
  if (shape != status::ok) return shape;
  if (!std::isfinite(plan.scale)) return {status::invalid_argument, "plan.scale"};
  if (!std::isfinite(plan.soft_cap) || plan.soft_cap < 0.0f) return {status::invalid_argument, "plan.soft_cap"};
  if (plan.window < 0) return {status::invalid_argument, "plan.window", plan.window, status::relation::at_least, 0};
  return first_failure(expect_multiple("plan.query_heads", plan.query_heads, plan.kv_heads), check_capacities(plan),
                       check_strides(plan));
}

status seam_attention(device_attention_plan const& plan, device_attention_tables const& tables, device_exec const& ex) {
  if (auto const s = validate(plan); s != status::ok) return s;
  if (auto const s = expect_exec(ex, plan.workspace_bytes()); s != status::ok) return s;
  if (plan.kernels() == 0) return status::ok;
  if (auto const s = check_tables(tables); s != status::ok) return s;
  auto const limits = current_device();
  if (!limits) return limits.error();
  if (auto const hopper = takes_hopper(ex, *limits, false); !hopper) return hopper.error();

  auto const told = tell(ex, "cuda.seam_attention");
  attention_call call{plan, tables, plan.query_heads / plan.kv_heads};
  if (splits_of(plan) > 1) {
    scratch room(ex.workspace);
    call.split_o = room.take<float>(partials_of(plan) * plan.value_dim);
    call.split_sums = room.take<float2>(partials_of(plan));
  }
  auto const stream = ex.stream.handle();
  auto const attend = plan.type == dtype::f32 ? attend_f32 : attend_half;
  if (auto const s = outcome_of(attend(call, stream)); s != status::ok) return s;
  return splits_of(plan) > 1 ? outcome_of(merge_splits(call, stream)) : status{status::ok};
}

std::int64_t attention_split() noexcept { return split_keys; }

}  // namespace hypic::inline v0
