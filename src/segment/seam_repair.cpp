// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/seam_repair.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "algebra/summary_checks.hpp"
#include "core/calls.hpp"
#include "core/parallel.hpp"
#include "core/subnormals.hpp"
#include "segment/chunk.hpp"
#include "segment/layer_checks.hpp"
#include "segment/turn.hpp"

namespace hypic::inline v0 {
namespace {

std::span<seam_span const> spans_of(repair_plan const& plan, seam_chain const& chain) noexcept {
  return std::span{plan.spans}.subspan(static_cast<std::size_t>(chain.first_span),
                                       static_cast<std::size_t>(chain.spans));
}

template <state_family F>
status check_turn(rotation const* turn, state_dims const& dims) noexcept {
  if (turn == nullptr || turn->identity()) return status::ok;
  if (F::form != operator_form::scalar) return {status::unsupported, "records.turn"};
  if (turn->sine.size() != turn->cosine.size()) return {status::invalid_shape, "records.turn"};
  if (turned_dims(turn) > dims.key_dim) {
    return {status::invalid_shape, "records.turn", turned_dims(turn), status::relation::at_most, dims.key_dim};
  }
  return status::ok;
}

/// What a span uses of its record.
template <state_family F>
status check_record(seam_span const& span, cached_span const& record, state_dims const& dims) noexcept {
  if (auto const s = check_turn<F>(record.turn, dims); s != status::ok) return s;
  if (span.head_rows > span.rows) {
    row_names const names{"records.head.k", "records.head.v", "records.head.gates", "records.head.beta"};
    auto const s = expect_at_least_rows<F>(names, record.head, span.head_rows, dims);
    if (s != status::ok) return s;
  }
  if (!span.has_body) return status::ok;
  return expect_summary({"records.body.operators", "records.body.end_states"}, F::form, dims, record.body);
}

/// Whether the spans that chains walk, in their order, are runs of rows that no two share.
bool chains_share_no_row(repair_plan const& plan) noexcept {
  std::int64_t walked = 0;
  for (auto const& chain : plan.chains) walked += chain.spans;
  std::size_t chain = 0;
  std::int64_t before = 0;  // spans of earlier chains
  return share_no_row(walked, [&](std::int64_t i) {
    if (i < before) chain = 0, before = 0;
    while (i - before >= plan.chains[chain].spans) before += plan.chains[chain++].spans;
    auto const& span = plan.spans[static_cast<std::size_t>(plan.chains[chain].first_span + i - before)];
    return std::pair{span.first_row, span.rows};
  });
}

template <state_family F>
status check(repair_plan const& plan, query_rows_view const& in, std::span<cached_span const> records,
             repair_outputs const& out, host_exec const& ex) {
  auto const found = static_cast<std::int64_t>(records.size());
  if (found != plan.records) {
    return {status::invalid_shape, "records", found, status::relation::equal_to, plan.records};
  }
  auto const checked = first_failure(expect_family<F>(plan.family),
                                     expect_inputs<F>(in, out.o, plan.total_rows, plan.dims, plan.options),
                                     expect_states(out.states, plan.chains, plan.slots, plan.dims),
                                     expect_entries("out.flags", out.flags.size(), plan.chains.size()),
                                     expect_exec(ex, plan.workspace_bytes(ex.threads)));
  if (checked != status::ok) return checked;
  if (!out.o.empty() && !chains_share_no_row(plan)) return {status::invalid_shape, "chains: two that write one row"};
  for (auto const& chain : plan.chains) {
    for (auto const& span : spans_of(plan, chain)) {
      if (span.cached < 0) continue;
      auto const s = check_record<F>(span, records[static_cast<std::size_t>(span.cached)], plan.dims);
      if (s != status::ok) return s;
    }
  }
  return status::ok;
}

/// One value head of one chain.
template <state_family F>
class head_repair {
 public:
  head_repair(repair_plan const& plan, query_rows_view const& in, std::span<cached_span const> records,
              repair_outputs const& out, std::int32_t head) noexcept
      : plan_(plan), in_(in), records_(records), out_(out), head_(head) {}

  void run(std::size_t index, scratch memory) const noexcept {
    auto const& chain = plan_.chains[index];
    head_state state{F::form, plan_.dims, memory};
    chunk_runner<F> runner{plan_.dims, plan_.options, memory};
    state.load(chain.initial_slot < 0 ? tensor_view<float const, 2>{} : slot(chain.initial_slot));
    std::uint32_t flags = 0;
    for (auto const& span : spans_of(plan_, chain)) {
      auto const rows = head_of(in_, plan_.dims, head_).slice(span.first_row, span.rows);
      flags |= runner.run(rows, 0, state, head_of(out_.o, head_).rows(span.first_row, span.rows));
      if (span.cached >= 0) walk_record(span, records_[static_cast<std::size_t>(span.cached)], runner, state);
    }
    if (chain.final_slot >= 0) state.store(slot(chain.final_slot));
    if (!out_.flags.empty()) std::atomic_ref{out_.flags[index]}.fetch_or(flags, std::memory_order_relaxed);
  }

 private:
  tensor_view<float, 2> slot(std::int32_t index) const noexcept { return out_.states[index][head_]; }

  void walk_record(seam_span const& span, cached_span const& record, chunk_runner<F>& runner,
                   head_state& state) const noexcept {
    if (span.head_rows > span.rows) {
      auto rows = head_of(record.head, plan_.dims, head_).slice(span.rows, span.head_rows - span.rows);
      rows.turn = record.turn;
      static_cast<void>(runner.run(rows, 0, state, {}));  // checked when they were recorded
    }
    if (span.has_body) state.apply(head_of(record.body, head_), record.turn);
  }

  repair_plan const& plan_;
  query_rows_view const& in_;
  std::span<cached_span const> records_;
  repair_outputs const& out_;
  std::int32_t head_;
};

status check_span(seam_span const& span, std::int64_t total_rows, std::int64_t records) noexcept {
  if (span.rows < 0) return {status::out_of_range, "spans.rows", span.rows, status::relation::at_least, 0};
  if (!holds_range(total_rows, span.first_row, span.rows)) {
    return {status::out_of_range, "spans.first_row", span.first_row, status::relation::at_most, total_rows - span.rows};
  }
  if (auto const s = expect_index("spans.cached", span.cached, -1, records); s != status::ok) return s;
  if (span.head_rows < 0) {
    return {status::out_of_range, "spans.head_rows", span.head_rows, status::relation::at_least, 0};
  }
  bool const fresh = span.cached < 0;
  if (fresh && span.head_rows != 0) {
    return {status::invalid_shape, "spans.head_rows", span.head_rows, status::relation::equal_to, 0};
  }
  if (fresh && span.has_body) return {status::invalid_shape, "spans.has_body"};
  // A seam longer than the head would count the body's first rows twice.
  if (!fresh && span.rows > span.head_rows) {
    return {status::invalid_shape, "spans.rows", span.rows, status::relation::at_most, span.head_rows};
  }
  return status::ok;
}

}  // namespace

std::int64_t repair_plan::workspace_bytes(int threads) const noexcept {
  auto const bytes = with_family(family, [&]<class F>(F) { return worker_bytes<F>(dims); });
  return bytes * workers_of(threads) + scratch_alignment;
}

result<repair_plan> plan_seam_repair(family_id family, state_dims const& dims, row_options const& options,
                                     std::int64_t total_rows, std::int64_t slots, std::int64_t records,
                                     std::vector<seam_span> spans, std::vector<seam_chain> chains) {
  if (auto const s = first_failure(validate(dims), expect_options(options)); s != status::ok) return s;
  if (total_rows < 0) return status{status::invalid_shape, "total_rows", total_rows, status::relation::at_least, 0};
  if (slots < 0) return status{status::invalid_shape, "slots", slots, status::relation::at_least, 0};
  if (records < 0) return status{status::invalid_shape, "records", records, status::relation::at_least, 0};
  for (auto const& span : spans) {
    if (auto const s = check_span(span, total_rows, records); s != status::ok) return s;
  }
  for (auto const& chain : chains) {
    auto const end = static_cast<std::int64_t>(spans.size());
    if (chain.spans < 0)
      return status{status::out_of_range, "chains.spans", chain.spans, status::relation::at_least, 0};
    if (!holds_range(end, chain.first_span, chain.spans)) {
      return status{status::out_of_range, "chains.first_span", chain.first_span, status::relation::at_most,
                    end - chain.spans};
    }
  }
  auto const checked = or_out_of_memory([&] { return expect_slots(chains, slots); });
  if (checked != status::ok) return checked;
  return repair_plan{family, dims, options, total_rows, slots, records, std::move(spans), std::move(chains)};
}

template <state_family F>
status seam_repair(repair_plan const& plan, query_rows_view const& in, std::span<cached_span const> records,
                   repair_outputs const& out, host_exec const& ex) {
  if (auto const s = check<F>(plan, in, records, out, ex); s != status::ok) return s;
  auto const told = tell(ex, "segment.repair");
  auto const heads = plan.dims.value_heads;
  auto const bytes = static_cast<std::size_t>(worker_bytes<F>(plan.dims));
  auto const tasks = static_cast<std::int64_t>(plan.chains.size()) * heads;
  parallel_for(ex.threads, tasks, [&](std::int64_t task, int worker) {
    flush_subnormals const guard;
    scratch const memory{ex.workspace.subspan(static_cast<std::size_t>(worker) * bytes)};
    head_repair<F> const repair{plan, in, records, out, static_cast<std::int32_t>(task % heads)};
    repair.run(static_cast<std::size_t>(task / heads), memory);
  });
  return status::ok;
}

template HYPIC_API status seam_repair<retnet>(repair_plan const&, query_rows_view const&, std::span<cached_span const>,
                                              repair_outputs const&, host_exec const&);
template HYPIC_API status seam_repair<gla>(repair_plan const&, query_rows_view const&, std::span<cached_span const>,
                                           repair_outputs const&, host_exec const&);
template HYPIC_API status seam_repair<gated_deltanet>(repair_plan const&, query_rows_view const&,
                                                      std::span<cached_span const>, repair_outputs const&,
                                                      host_exec const&);
template HYPIC_API status seam_repair<kda>(repair_plan const&, query_rows_view const&, std::span<cached_span const>,
                                           repair_outputs const&, host_exec const&);

}  // namespace hypic::inline v0
