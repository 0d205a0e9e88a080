// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

#include "core/shapes.hpp"
#include "hypic/algebra/summary.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/rows.hpp"

/// What segment_prefill and seam_repair check alike.
namespace hypic::inline v0 {

/// Whether [first, first + count) lies in [0, total).
constexpr bool holds_range(std::int64_t total, std::int64_t first, std::int64_t count) noexcept {
  return first >= 0 && count >= 0 && first <= total && count <= total - first;
}

constexpr status expect_index(char const* argument, std::int64_t index, std::int64_t lowest,
                              std::int64_t end) noexcept {
  if (index < lowest) return {status::out_of_range, argument, index, status::relation::at_least, lowest};
  if (index >= end) return {status::out_of_range, argument, index, status::relation::at_most, end - 1};
  return status::ok;
}

/// Slots of runs that may go at the same time: in the pool or -1, and what one of them writes no other reads or writes.
template <class Run>
status expect_slots(std::vector<Run> const& runs, std::int64_t slots) {
  std::vector<std::int32_t> written;
  for (auto const& run : runs) {
    auto const checked = first_failure(expect_index("initial_slot", run.initial_slot, -1, slots),
                                       expect_index("final_slot", run.final_slot, -1, slots));
    if (checked != status::ok) return checked;
    if (run.final_slot >= 0) written.push_back(run.final_slot);
  }
  std::ranges::sort(written);
  if (auto const twice = std::ranges::adjacent_find(written); twice != written.end()) {
    return {status::out_of_range, "final_slot"};
  }
  for (auto const& run : runs) {
    bool const is_written = run.initial_slot >= 0 && std::ranges::binary_search(written, run.initial_slot);
    if (is_written && run.initial_slot != run.final_slot) return {status::out_of_range, "initial_slot"};
  }
  return status::ok;
}

/// Whether the host's pool is there for those runs that name a slot.
template <class Run>
status expect_states(tensor_view<float, 4> const& states, std::vector<Run> const& runs, std::int64_t slots,
                     state_dims const& dims) noexcept {
  bool const used = std::ranges::any_of(runs, [](Run const& r) { return r.initial_slot >= 0 || r.final_slot >= 0; });
  if (!used && states.empty()) return status::ok;
  return expect_shape("out.states", states, {slots, dims.value_heads, dims.key_dim, dims.value_dim}, last_stride::any);
}

struct row_names {
  char const* k;
  char const* v;
  char const* gates;
  char const* beta;
};

template <state_family F, class T>
status expect_rows(row_names const& names, basic_rows_view<T> const& rows, std::int64_t count,
                   state_dims const& dims) noexcept {
  auto const beta = F::delta_rule ? expect_shape(names.beta, rows.beta, {count, dims.value_heads}, last_stride::any)
                    : rows.beta.empty() ? status{status::ok}
                                        : status{status::invalid_argument, names.beta};
  return first_failure(expect_shape(names.k, rows.k, {count, dims.key_heads, dims.key_dim}),
                       expect_shape(names.v, rows.v, {count, dims.value_heads, dims.value_dim}),
                       expect_shape(names.gates, rows.gates, {count, dims.value_heads, gate_elements<F>(dims.key_dim)}),
                       beta);
}

/// The first `count` rows of `rows`, which may hold more.
template <state_family F, class T>
status expect_at_least_rows(row_names const& names, basic_rows_view<T> const& rows, std::int64_t count,
                            state_dims const& dims) noexcept {
  auto const checked =
      first_failure(expect_extent(names.k, rows.k, 0, count), expect_extent(names.v, rows.v, 0, count),
                    expect_extent(names.gates, rows.gates, 0, count),
                    F::delta_rule ? expect_extent(names.beta, rows.beta, 0, count) : status{status::ok});
  if (checked != status::ok) return checked;
  return expect_rows<F>(names, rows.slice(0, count), count, dims);
}

/// The packed inputs of a call that writes `o`, which may be empty: queries are needed for outputs alone.
template <state_family F>
status expect_inputs(query_rows_view const& in, tensor_view<float, 3> const& o, std::int64_t total_rows,
                     state_dims const& dims, row_options const& options) noexcept {
  if (in.gates != options.gates) {
    return {status::invalid_argument, "in.gates", static_cast<std::int64_t>(in.gates), status::relation::equal_to,
            static_cast<std::int64_t>(options.gates)};
  }
  auto const rows = expect_rows<F>({"rows.k", "rows.v", "rows.gates", "rows.beta"}, in.rows, total_rows, dims);
  status q = status::ok;
  status outputs = status::ok;
  if (!o.empty() || !in.q.empty()) q = expect_shape("q", in.q, {total_rows, dims.key_heads, dims.key_dim});
  if (!o.empty()) outputs = expect_shape("out.o", o, {total_rows, dims.value_heads, dims.value_dim});
  auto const& [k, v, gates, beta] = in.rows;
  return first_failure(rows, q, outputs, expect_apart("out.o overlaps an input", o, in.q, k, v, gates, beta));
}

/// A span of one entry a run, or an empty one.
constexpr status expect_entries(char const* argument, std::size_t found, std::size_t wanted) noexcept {
  if (found == 0 || found == wanted) return status::ok;
  return {status::invalid_shape, argument, static_cast<std::int64_t>(found), status::relation::equal_to,
          static_cast<std::int64_t>(wanted)};
}

template <state_family F>
status expect_family(family_id planned) noexcept {
  if (F::id == planned) return status::ok;
  return {status::invalid_argument, "plan.family", static_cast<std::int64_t>(planned), status::relation::equal_to,
          static_cast<std::int64_t>(F::id)};
}

inline status expect_options(row_options const& options) noexcept {
  if (!std::isfinite(options.q_scale)) return {status::invalid_argument, "options.q_scale"};
  if (!(options.l2_epsilon >= 0.0f && std::isfinite(options.l2_epsilon)))
    return {status::invalid_argument, "options.l2_epsilon"};
  return status::ok;
}

/// Calls `make` and turns a failed allocation into a status: no exception leaves the library.
template <class Make>
auto or_out_of_memory(Make&& make) noexcept -> decltype(make()) {
  try {
    return make();
  } catch (std::bad_alloc const&) {
    return status{status::out_of_memory};
  }
}

}  // namespace hypic::inline v0
