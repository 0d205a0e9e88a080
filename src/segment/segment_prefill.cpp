// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/segment_prefill.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "algebra/summary_checks.hpp"
#include "core/calls.hpp"
#include "core/parallel.hpp"
#include "core/subnormals.hpp"
#include "segment/chunk.hpp"
#include "segment/layer_checks.hpp"

namespace hypic::inline v0 {
namespace {

/// Rows of a sequence that its segment's head holds.
std::int64_t rows_before_body(prefill_plan const& plan, prefill_sequence const& sequence) noexcept {
  return std::clamp<std::int64_t>(plan.head_rows - sequence.position, 0, sequence.rows);
}

template <state_family F>
status check(prefill_plan const& plan, query_rows_view const& in, prefill_outputs const& out, host_exec const& ex) {
  auto const runs = plan.sequences.size();
  auto const checked = first_failure(
      expect_family<F>(plan.family), expect_inputs<F>(in, out.o, plan.total_rows, plan.dims, plan.options),
      expect_states(out.states, plan.sequences, plan.slots, plan.dims),
      expect_entries("out.bodies", out.bodies.size(), runs), expect_entries("out.heads", out.heads.size(), runs),
      expect_entries("out.flags", out.flags.size(), runs), expect_exec(ex, plan.workspace_bytes(ex.threads)));
  if (checked != status::ok) return checked;
  auto const rows_of = [&](std::int64_t i) {
    auto const& sequence = plan.sequences[static_cast<std::size_t>(i)];
    return std::pair{sequence.first_row, sequence.rows};
  };
  if (!out.o.empty() && !share_no_row(static_cast<std::int64_t>(runs), rows_of))
    return {status::invalid_shape, "sequences: two that write one row"};
  for (auto const& body : out.bodies) {
    if (body.empty()) continue;
    auto const s = expect_summary({"out.bodies.operators", "out.bodies.end_states"}, F::form, plan.dims, body);
    if (s != status::ok) return s;
  }
  row_names const names{"out.heads.k", "out.heads.v", "out.heads.gates", "out.heads.beta"};
  for (std::size_t s = 0; s < out.heads.size(); ++s) {
    auto const before = rows_before_body(plan, plan.sequences[s]);
    if (before == 0 || out.heads[s].empty()) continue;
    auto const rows = expect_at_least_rows<F>(names, out.heads[s], plan.sequences[s].position + before, plan.dims);
    if (rows != status::ok) return rows;
  }
  return status::ok;
}

/// Copies one head of one operand of a record's head rows.
template <class View, class ConstView>
void copy_rows(ConstView const& from, View const& to, std::int64_t head) noexcept {
  if (from.empty()) return;
  for (std::int64_t r = 0; r < from.extent[0]; ++r) {
    if constexpr (View::rank == 3) {
      std::copy_n(&from(r, head, 0), from.extent[2], &to(r, head, 0));
    } else {
      to(r, head) = from(r, head);
    }
  }
}

/// One value head of one sequence.
template <state_family F>
class head_prefill {
 public:
  head_prefill(prefill_plan const& plan, query_rows_view const& in, prefill_outputs const& out, std::size_t sequence,
               std::int32_t head) noexcept
      : plan_(plan), in_(in), out_(out), sequence_(plan.sequences[sequence]), index_(sequence), head_(head) {}

  void run(scratch memory) const noexcept {
    head_state state{F::form, plan_.dims, memory};
    chunk_runner<F> runner{plan_.dims, plan_.options, memory};
    auto const rows = head_of(in_, plan_.dims, head_).slice(sequence_.first_row, sequence_.rows);
    auto const o = head_of(out_.o, head_).rows(sequence_.first_row, sequence_.rows);
    auto const before = rows_before_body(plan_, sequence_);
    auto const after = sequence_.rows - before;

    if (!out_.heads.empty() && !out_.heads[index_].empty()) record_head(before);
    state.load(sequence_.initial_slot < 0 ? tensor_view<float const, 2>{} : slot(sequence_.initial_slot));
    auto flags = runner.run(rows.slice(0, before), sequence_.position, state, o.rows(0, before));
    bool const makes_body = !out_.bodies.empty() && !out_.bodies[index_].empty();
    if (makes_body) state.begin_body(body_so_far());
    flags |= runner.run(rows.slice(before, after), sequence_.position + before - plan_.head_rows, state,
                        o.rows(before, after));
    if (makes_body) state.end_body(head_of(out_.bodies[index_], head_));
    if (sequence_.final_slot >= 0) state.store(slot(sequence_.final_slot));
    if (!out_.flags.empty()) std::atomic_ref{out_.flags[index_]}.fetch_or(flags, std::memory_order_relaxed);
  }

 private:
  tensor_view<float, 2> slot(std::int32_t index) const noexcept { return out_.states[index][head_]; }

  head_summary<float const> body_so_far() const noexcept {
    if (sequence_.position == 0) return {};
    return head_of(static_cast<const_summary_view>(out_.bodies[index_]), head_);
  }

  void record_head(std::int64_t count) const noexcept {
    if (count == 0) return;
    auto const from = in_.rows.slice(sequence_.first_row, count);
    auto const to = out_.heads[index_].slice(sequence_.position, count);
    auto const key_head = plan_.dims.key_head_of(head_);
    bool const first_of_key_head = head_ == 0 || plan_.dims.key_head_of(head_ - 1) != key_head;
    if (first_of_key_head) copy_rows(from.k, to.k, key_head);
    copy_rows(from.v, to.v, head_);
    copy_rows(from.gates, to.gates, head_);
    copy_rows(from.beta, to.beta, head_);
  }

  prefill_plan const& plan_;
  query_rows_view const& in_;
  prefill_outputs const& out_;
  prefill_sequence const& sequence_;
  std::size_t index_;
  std::int32_t head_;
};

status check_sequence(prefill_sequence const& sequence, std::int64_t total_rows) noexcept {
  if (sequence.position < 0) {
    return {status::invalid_shape, "sequences.position", sequence.position, status::relation::at_least, 0};
  }
  if (sequence.rows < 0) return {status::invalid_shape, "sequences.rows", sequence.rows, status::relation::at_least, 0};
  auto const furthest = std::numeric_limits<std::int64_t>::max() - sequence.rows;
  if (sequence.position > furthest) {
    return {status::invalid_shape, "sequences.position", sequence.position, status::relation::at_most, furthest};
  }
  if (!holds_range(total_rows, sequence.first_row, sequence.rows)) {
    return {status::invalid_shape, "sequences.first_row", sequence.first_row, status::relation::at_most,
            total_rows - sequence.rows};
  }
  return status::ok;
}

}  // namespace

result<std::vector<prefill_sequence>> sequences_from_cu_seqlens(std::span<std::int32_t const> cu_seqlens,
                                                                std::int64_t total_rows) {
  if (cu_seqlens.empty()) return status{status::invalid_shape, "cu_seqlens", 0, status::relation::at_least, 1};
  if (cu_seqlens.front() != 0) {
    return status{status::out_of_range, "cu_seqlens.front()", cu_seqlens.front(), status::relation::equal_to, 0};
  }
  for (std::size_t s = 1; s < cu_seqlens.size(); ++s) {
    if (cu_seqlens[s] < cu_seqlens[s - 1]) {
      return status{status::out_of_range, "cu_seqlens", cu_seqlens[s], status::relation::at_least, cu_seqlens[s - 1]};
    }
  }
  if (cu_seqlens.back() != total_rows) {
    return status{status::out_of_range, "cu_seqlens.back()", cu_seqlens.back(), status::relation::equal_to, total_rows};
  }
  return or_out_of_memory([&]() -> result<std::vector<prefill_sequence>> {
    std::vector<prefill_sequence> sequences(cu_seqlens.size() - 1);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      sequences[s].first_row = cu_seqlens[s];
      sequences[s].rows = cu_seqlens[s + 1] - cu_seqlens[s];
    }
    return sequences;
  });
}

std::int64_t prefill_plan::workspace_bytes(int threads) const noexcept {
  auto const bytes = with_family(family, [&]<class F>(F) { return worker_bytes<F>(dims); });
  return bytes * workers_of(threads) + scratch_alignment;
}

result<prefill_plan> plan_segment_prefill(family_id family, state_dims const& dims, row_options const& options,
                                          std::int32_t head_rows, std::int64_t total_rows, std::int64_t slots,
                                          std::vector<prefill_sequence> sequences) {
  if (auto const s = first_failure(validate(dims), expect_options(options)); s != status::ok) return s;
  if (head_rows < 0) return status{status::invalid_shape, "head_rows", head_rows, status::relation::at_least, 0};
  if (total_rows < 0) return status{status::invalid_shape, "total_rows", total_rows, status::relation::at_least, 0};
  if (slots < 0) return status{status::invalid_shape, "slots", slots, status::relation::at_least, 0};
  for (auto const& sequence : sequences) {
    if (auto const s = check_sequence(sequence, total_rows); s != status::ok) return s;
  }
  auto const checked = or_out_of_memory([&] { return expect_slots(sequences, slots); });
  if (checked != status::ok) return checked;
  return prefill_plan{family, dims, options, head_rows, total_rows, slots, std::move(sequences)};
}

template <state_family F>
status segment_prefill(prefill_plan const& plan, query_rows_view const& in, prefill_outputs const& out,
                       host_exec const& ex) {
  if (auto const s = check<F>(plan, in, out, ex); s != status::ok) return s;
  auto const told = tell(ex, "segment.prefill");
  auto const heads = plan.dims.value_heads;
  auto const bytes = static_cast<std::size_t>(worker_bytes<F>(plan.dims));
  auto const tasks = static_cast<std::int64_t>(plan.sequences.size()) * heads;
  parallel_for(ex.threads, tasks, [&](std::int64_t task, int worker) {
    flush_subnormals const guard;
    scratch const memory{ex.workspace.subspan(static_cast<std::size_t>(worker) * bytes)};
    head_prefill<F>{plan, in, out, static_cast<std::size_t>(task / heads), static_cast<std::int32_t>(task % heads)}.run(
        memory);
  });
  return status::ok;
}

std::int64_t prefill_chunk(family_id) noexcept { return settle_tokens; }

template HYPIC_API status segment_prefill<retnet>(prefill_plan const&, query_rows_view const&, prefill_outputs const&,
                                                  host_exec const&);
template HYPIC_API status segment_prefill<gla>(prefill_plan const&, query_rows_view const&, prefill_outputs const&,
                                               host_exec const&);
template HYPIC_API status segment_prefill<gated_deltanet>(prefill_plan const&, query_rows_view const&,
                                                          prefill_outputs const&, host_exec const&);
template HYPIC_API status segment_prefill<kda>(prefill_plan const&, query_rows_view const&, prefill_outputs const&,
                                               host_exec const&);

}  // namespace hypic::inline v0
