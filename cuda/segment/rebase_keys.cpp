// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/rebase_keys.hpp"

#include "core/shapes.hpp"
#include "cuda/core/calls.hpp"
#include "cuda/core/plan_checks.hpp"
#include "cuda/segment/rebase_keys_kernel.hpp"

namespace hypic::inline v0 {
namespace {

/// Bounds far beyond any model, within which a row's elements and a page's rows are counted in 32 bits.
constexpr std::int64_t most_elements = std::int64_t{1} << 30;
constexpr std::int64_t most_rows = std::int64_t{1} << 40;

status check_shape(kv_shape const& shape) noexcept {
  if (shape.pairing > rotary_pairing::interleaved) return {status::invalid_argument, "plan.shape.pairing"};
  auto const least = first_failure(expect_least("plan.shape.kv_heads", shape.kv_heads, 1),
                                   expect_least("plan.shape.key_dim", shape.key_dim, 1),
                                   expect_least("plan.shape.value_dim", shape.value_dim, 1),
                                   expect_least("plan.shape.rotary_pairs", shape.rotary_pairs, 0));
  if (least != status::ok) return least;
  auto const pairs = std::int64_t{shape.rotary_pairs};
  if (2 * pairs > shape.key_dim)
    return {status::invalid_shape, "plan.shape.rotary_pairs", pairs, status::relation::at_most, shape.key_dim / 2};
  auto const dims = std::int64_t{shape.key_dim} + shape.value_dim;
  return expect_most("plan.shape.kv_heads", shape.kv_heads, most_elements / dims);
}

/// Rows are read at any stride, one row seen as many included; what is written takes room of its own.
status check_strides(rebase_keys_plan const& plan) noexcept {
  auto const& keys = plan.placed_keys;
  auto const& values = plan.placed_values;
  std::int64_t const key_dim = plan.shape.key_dim;
  std::int64_t const value_dim = plan.shape.value_dim;
  bool const heads = plan.shape.kv_heads > 1;
  bool const paged = plan.pages.page_size > 0;
  return first_failure(expect_least("plan.cached_keys.row", plan.cached_keys.row, 0),
                       expect_least("plan.cached_keys.head", plan.cached_keys.head, 0),
                       expect_least("plan.cached_values.row", plan.cached_values.row, 0),
                       expect_least("plan.cached_values.head", plan.cached_values.head, 0),
                       expect_least("plan.placed_keys.row", keys.row, key_dim),
                       expect_least("plan.placed_keys.head", keys.head, heads ? key_dim : 0),
                       expect_least("plan.placed_keys.page", keys.page, paged ? key_dim : 0),
                       expect_least("plan.placed_values.row", values.row, value_dim),
                       expect_least("plan.placed_values.head", values.head, heads ? value_dim : 0),
                       expect_least("plan.placed_values.page", values.page, paged ? value_dim : 0));
}

}  // namespace

rebase_keys_plan plan_rebase_keys(dtype type, kv_shape const& shape, kv_pages const& pages, std::int64_t spans,
                                  std::int64_t rows) noexcept {
  auto const key_row = std::int64_t{shape.kv_heads} * shape.key_dim;
  auto const value_row = std::int64_t{shape.kv_heads} * shape.value_dim;
  return {.type = type,
          .shape = shape,
          .pages = pages,
          .cached_keys = {key_row, shape.key_dim},
          .cached_values = {value_row, shape.value_dim},
          .placed_keys = {pages.page_size * key_row, key_row, shape.key_dim},
          .placed_values = {pages.page_size * value_row, value_row, shape.value_dim},
          .spans = spans,
          .rows = rows};
}

status validate(rebase_keys_plan const& plan) noexcept {
  if (plan.type > dtype::bf16) return {status::invalid_argument, "plan.type"};
  auto const checked =
      first_failure(check_shape(plan.shape), expect_least("plan.pages.page_size", plan.pages.page_size, 0),
                    expect_most("plan.pages.page_size", plan.pages.page_size, most_elements),
                    expect_least("plan.pages.count", plan.pages.count, 0), check_strides(plan),
                    expect_least("plan.spans", plan.spans, 0), expect_least("plan.rows", plan.rows, 0),
                    expect_most("plan.rows", plan.rows, most_rows));
  if (checked != status::ok) return checked;
  return expect_grid("plan.spans", plan.spans, grid_of(plan).blocks_per_span);
}

status rebase_keys(rebase_keys_plan const& plan, rebase_span const* spans, device_exec const& ex) {
  if (auto const s = first_failure(validate(plan), expect_exec(ex, 0)); s != status::ok) return s;
  if (plan.spans == 0) return status::ok;
  if (spans == nullptr) return {status::invalid_argument, "spans"};
  if (auto const s = expect_path(ex); s != status::ok) return s;
  auto const told = tell(ex, "cuda.rebase_keys");
  return launch_rebase_keys(plan, spans, ex);
}

}  // namespace hypic::inline v0
