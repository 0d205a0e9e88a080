// SPDX-License-Identifier: Apache-2.0
#include "hypic/request/assembler.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>

#include "core/calls.hpp"
#include "core/parallel.hpp"
#include "core/scratch.hpp"
#include "core/shapes.hpp"
#include "hypic/algebra/tail.hpp"
#include "hypic/segment/rebase_keys.hpp"
#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

planned_span const& span_of(batch_plan const& batch, forwarded_run const& run) {
  return batch.requests[static_cast<std::size_t>(run.request)].plan.spans[static_cast<std::size_t>(run.span)];
}

/// Calls fn(run, span, record) for each run that reuses a record.
template <class Fn>
void for_each_cached(batch_plan const& batch, std::span<record_view const> records, Fn&& fn) {
  for (std::size_t i = 0; i < batch.runs.size(); ++i)
    if (auto const entry = batch.record_of[i]; entry >= 0)
      fn(batch.runs[i], span_of(batch, batch.runs[i]), records[static_cast<std::size_t>(entry)]);
}

status check_records(model_layout const& layout, batch_plan const& batch, std::span<record_view const> records) {
  if (records.size() != batch.records.size())
    return {status::invalid_shape, "records", static_cast<std::int64_t>(records.size()), status::relation::equal_to,
            static_cast<std::int64_t>(batch.records.size())};
  for (auto const& record : records) {
    if (record.layout == nullptr || (record.block == nullptr && record.layout->bytes() > 0))
      return {status::invalid_argument, "records: one without a layout or a block"};
    auto const expected = record_layout::make(layout, record.layout->tokens());
    if (!expected) return expected.error();
    if (*expected != *record.layout) return {status::invalid_shape, "records: one laid out for another model"};
  }
  status outcome = status::ok;
  for_each_cached(batch, records, [&](forwarded_run const&, planned_span const& span, record_view const& record) {
    if (outcome == status::ok && record.layout->tokens() != span.tokens)
      outcome = {status::invalid_shape, "record tokens", record.layout->tokens(), status::relation::equal_to,
                 span.tokens};
  });
  return outcome;
}

/// The spans of every run, cached ones numbered in order.
std::vector<seam_span> seam_spans(batch_plan const& batch, std::span<record_view const> records) {
  std::vector<seam_span> spans;
  spans.reserve(batch.runs.size());
  std::int32_t cached = 0;
  for (std::size_t i = 0; i < batch.runs.size(); ++i) {
    seam_span span{.first_row = batch.runs[i].first_row, .rows = batch.runs[i].rows};
    if (auto const entry = batch.record_of[i]; entry >= 0) {
      auto const& layout = *records[static_cast<std::size_t>(entry)].layout;
      span.cached = cached++;
      span.head_rows = static_cast<std::int32_t>(layout.head_rows());
      span.has_body = layout.has_body();
    }
    spans.push_back(span);
  }
  return spans;
}

std::vector<seam_chain> seam_chains(batch_plan const& batch) {
  std::vector<seam_chain> chains;
  std::int64_t first_span = 0;
  for (auto const& request : batch.requests) {
    auto const spans = static_cast<std::int64_t>(request.plan.spans.size());
    chains.push_back({first_span, spans, request.initial_slot, request.final_slot});
    first_span += spans;
  }
  return chains;
}

void copy_rows(tensor_view<float const, 2> in, tensor_view<float, 2> out) {
  for (std::int64_t row = 0; row < out.extent[0]; ++row)
    std::memmove(&out(row, 0), &in(row, 0), static_cast<std::size_t>(out.extent[1]) * sizeof(float));
}

void copy_rows(tensor_view<float const, 3> in, tensor_view<float, 3> out) {
  for (std::int64_t row = 0; row < out.extent[0]; ++row) copy_rows(in[row], out[row]);
}

/// Columns [first, first + count) of every row.
template <class T>
tensor_view<T, 2> columns(tensor_view<T, 2> view, std::int64_t first, std::int64_t count) noexcept {
  return {view.data + first, {view.extent[0], count}, view.stride};
}

/// One group of a tail: [rows, channels of the group].
tensor_view<float const, 2> group_of(tensor_view<float const, 3> const& tail, std::int64_t group) noexcept {
  if (tail.empty()) return {};
  return {tail.data + group * tail.stride[1], {tail.extent[0], tail.extent[2]}, {tail.stride[0], tail.stride[2]}};
}

void clear_rows(tensor_view<float, 2> out) {
  for (std::int64_t row = 0; row < out.extent[0]; ++row) std::fill_n(&out(row, 0), out.extent[1], 0.0f);
}

}  // namespace

result<assembler> assembler::make(model_layout const& layout, batch_plan plan, std::span<record_view const> records,
                                  std::int64_t state_slots) {
  return guarded([&]() -> result<assembler> {
    if (auto const s = validate(layout); s != status::ok) return s;
    if (auto const s = check_records(layout, plan, records); s != status::ok) return s;

    assembler made;
    made.plan_ = std::move(plan);
    auto const& batch = made.plan_;
    for (auto const& request : batch.requests)
      made.positions_.insert(made.positions_.end(), request.plan.row_positions.begin(),
                             request.plan.row_positions.end());
    for (std::size_t i = 0; i < batch.runs.size(); ++i)
      made.convolution_runs_.push_back({batch.runs[i].first_row, batch.runs[i].rows, static_cast<std::int64_t>(i)});

    auto const cached = std::count_if(batch.record_of.begin(), batch.record_of.end(), [](auto e) { return e >= 0; });
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
      auto const layer = static_cast<std::int32_t>(l);
      if (auto const* attention = std::get_if<attention_layer>(&layout.layers[l])) {
        auto walk = made.make_attention_walk(layer, *attention, records);
        if (auto const s = validate(walk.plan); s != status::ok) return s;
        made.walks_.emplace_back(std::move(walk));
        continue;
      }
      auto const& linear = std::get<linear_layer>(layout.layers[l]);
      auto repair = plan_seam_repair(linear.family, linear.dims, linear.options, batch.rows(), state_slots, cached,
                                     seam_spans(batch, records), seam_chains(batch));
      if (!repair) return repair.error();
      made.walks_.emplace_back(made.make_linear_walk(layer, linear, std::move(repair).value(), records));
    }
    return made;
  });
}

assembler::linear_walk assembler::make_linear_walk(std::int32_t layer, linear_layer const& shape, repair_plan plan,
                                                   std::span<record_view const> records) const {
  linear_walk walk{.plan = std::move(plan),
                   .tail_rows = shape.tail_rows,
                   .tail_channels = shape.tail_channels,
                   .tail_groups = shape.tail_groups};
  walk.tails.resize(plan_.runs.size());
  for_each_cached(plan_, records, [&](forwarded_run const& run, planned_span const& span, record_view const& record) {
    walk.turns.push_back(shape.rotary ? make_rotation(*shape.rotary, span.turn) : rotation{});
    walk.cached.push_back({record.layout->head(layer, record.block), record.layout->body(layer, record.block)});
    if (shape.tail_rows > 0)
      walk.tails[static_cast<std::size_t>(&run - plan_.runs.data())] = record.layout->tail(layer, record.block);
  });
  if (shape.rotary)
    for (std::size_t i = 0; i < walk.cached.size(); ++i) walk.cached[i].turn = &walk.turns[i];
  return walk;
}

assembler::attention_walk assembler::make_attention_walk(std::int32_t layer, attention_layer const& shape,
                                                         std::span<record_view const> records) const {
  attention_walk walk;
  std::vector<attention_sequence> sequences;
  for (std::size_t r = 0; r < plan_.requests.size(); ++r) {
    auto const& request = plan_.requests[r].plan;
    sequences.push_back({plan_.first_row[r], request.rows(), request.prompt_tokens});
  }
  walk.plan = plan_attention(shape, plan_.rows(), std::move(sequences));
  for_each_cached(plan_, records, [&](forwarded_run const& run, planned_span const& span, record_view const& record) {
    auto const rows = span.tokens - span.rows;
    walk.cached.push_back({.request = run.request,
                           .first_position = span.start + span.rows,
                           .turn = shape.rotary ? make_rotation(*shape.rotary, span.turn) : rotation{},
                           .keys = record.layout->keys(layer, record.block).rows(span.rows, rows),
                           .values = record.layout->values(layer, record.block).rows(span.rows, rows)});
  });
  return walk;
}

std::int64_t assembler::view_bytes(attention_walk const& walk) noexcept {
  return scratch_bytes<key_value_view>(static_cast<std::int64_t>(walk.plan.sequences.size()));
}

std::int64_t assembler::attention_workspace_bytes(attention_walk const& walk, int threads) noexcept {
  return view_bytes(walk) + scratch_alignment + walk.plan.workspace_bytes(threads);
}

std::int64_t assembler::workspace_bytes(int threads) const noexcept {
  std::int64_t most = 0;
  for (auto const& walk : walks_) {
    if (auto const* linear = std::get_if<linear_walk>(&walk)) {
      most = std::max(most, linear->plan.workspace_bytes(threads));
    } else {
      most = std::max(most, attention_workspace_bytes(std::get<attention_walk>(walk), threads));
    }
  }
  return most;
}

status assembler::check_layer(std::int32_t layer) const noexcept {
  auto const layers = static_cast<std::int64_t>(walks_.size());
  if (layer < 0 || layer >= layers)
    return {status::out_of_range, "layer", layer, status::relation::at_most, layers - 1};
  return status::ok;
}

status assembler::tails(std::int32_t layer, tensor_view<float const, 2> raw, tensor_view<float, 3> pool,
                        tensor_view<float, 3> tails, host_exec const& ex) const {
  if (auto const s = check_layer(layer); s != status::ok) return s;
  auto const* walk = std::get_if<linear_walk>(&walks_[static_cast<std::size_t>(layer)]);
  if (walk == nullptr || walk->tail_rows == 0) return {status::invalid_argument, "layer: it has no convolution"};
  auto const runs = static_cast<std::int64_t>(plan_.runs.size());
  if (auto const s = expect_shape("raw", raw, {plan_.rows(), walk->tail_channels}); s != status::ok) return s;
  if (auto const s = expect_shape("tails", tails, {runs, walk->tail_rows, walk->tail_channels}); s != status::ok)
    return s;
  if (auto const s = expect_shape("pool", pool, {walk->plan.slots, walk->tail_rows, walk->tail_channels});
      s != status::ok)
    return s;

  if (auto const s = expect_exec(ex, 0); s != status::ok) return s;

  auto const& chains = walk->plan.chains;
  parallel_for(ex.threads, static_cast<std::int64_t>(chains.size()), [&](std::int64_t request, int) {
    walk_tails(*walk, chains[static_cast<std::size_t>(request)], raw, pool, tails);
  });
  return status::ok;
}

void assembler::walk_tails(linear_walk const& walk, seam_chain const& chain, tensor_view<float const, 2> raw,
                           tensor_view<float, 3> pool, tensor_view<float, 3> tails) const {
  auto const end = chain.first_span + chain.spans;
  auto const final_tail = chain.final_slot >= 0 ? pool[chain.final_slot] : tensor_view<float, 2>{};
  if (auto const start = chain.spans > 0 ? tails[chain.first_span] : final_tail; !start.empty()) {
    if (chain.initial_slot >= 0) {
      copy_rows(pool[chain.initial_slot], start);
    } else {
      clear_rows(start);
    }
  }
  for (auto span = chain.first_span; span < end; ++span) {
    auto const after = span + 1 < end ? tails[span + 1] : final_tail;
    if (after.empty()) return;
    auto const i = static_cast<std::size_t>(span);
    auto const& run = plan_.runs[i];
    auto const width = walk.tail_channels / walk.tail_groups;
    for (std::int64_t group = 0; group < walk.tail_groups; ++group) {
      auto const of = [&](auto const& view) { return columns(view, group * width, width); };
      auto const outcome =
          continue_tail(of(tails[span]), span_of(plan_, run).tokens, of(raw.rows(run.first_row, run.rows)),
                        group_of(walk.tails[i], group), of(after));
      assert(outcome == status::ok);  // the shapes are the plan's own
      static_cast<void>(outcome);
    }
  }
}

status assembler::linear(std::int32_t layer, query_rows_view const& in, repair_outputs const& out,
                         host_exec const& ex) const {
  if (auto const s = check_layer(layer); s != status::ok) return s;
  auto const* walk = std::get_if<linear_walk>(&walks_[static_cast<std::size_t>(layer)]);
  if (walk == nullptr) return {status::invalid_argument, "layer: it is an attention layer"};
  return with_family(walk->plan.family,
                     [&]<class F>(F) { return seam_repair<F>(walk->plan, in, walk->cached, out, ex); });
}

status assembler::check_attention(attention_walk const& walk, tensor_view<float const, 3> k,
                                  tensor_view<float const, 3> v, std::span<request_cache const> caches) const noexcept {
  auto const& plan = walk.plan;
  if (auto const s = expect_shape("k", k, {plan_.rows(), plan.kv_heads, plan.key_dim}); s != status::ok) return s;
  if (auto const s = expect_shape("v", v, {plan_.rows(), plan.kv_heads, plan.value_dim}); s != status::ok) return s;
  if (caches.size() != plan.sequences.size())
    return {status::invalid_shape, "caches", static_cast<std::int64_t>(caches.size()), status::relation::equal_to,
            static_cast<std::int64_t>(plan.sequences.size())};
  for (std::size_t r = 0; r < caches.size(); ++r) {
    auto const& [keys, values] = caches[r];
    auto const least = plan.sequences[r].keys;
    auto const checked =
        first_failure(expect_extent("caches.keys", keys, 0, least), expect_extent("caches.values", values, 0, least),
                      expect_shape("caches.keys", keys, {keys.extent[0], plan.kv_heads, plan.key_dim}),
                      expect_shape("caches.values", values, {values.extent[0], plan.kv_heads, plan.value_dim}));
    if (checked != status::ok) return checked;
  }
  return status::ok;
}

status assembler::attention(std::int32_t layer, tensor_view<float const, 3> q, tensor_view<float const, 3> k,
                            tensor_view<float const, 3> v, std::span<request_cache const> caches,
                            tensor_view<float, 3> o, host_exec const& ex) const {
  if (auto const s = check_layer(layer); s != status::ok) return s;
  auto const* walk = std::get_if<attention_walk>(&walks_[static_cast<std::size_t>(layer)]);
  if (walk == nullptr) return {status::invalid_argument, "layer: it is a linear layer"};
  if (auto const s = check_attention(*walk, k, v, caches); s != status::ok) return s;
  // Before anything is written, what seam_attention would find after it.
  auto const& plan = walk->plan;
  auto const checked = first_failure(expect_shape("q", q, {plan.total_rows, plan.query_heads, plan.key_dim}),
                                     expect_shape("o", o, {plan.total_rows, plan.query_heads, plan.value_dim}),
                                     expect_apart("o overlaps an input", o, q, k, v),
                                     expect_exec(ex, attention_workspace_bytes(*walk, ex.threads)));
  if (checked != status::ok) return checked;

  for (auto const& span : walk->cached) {
    auto const& cache = caches[static_cast<std::size_t>(span.request)];
    auto const rows = span.keys.extent[0];
    if (auto const s = rebase_keys(span.turn, span.keys, span.values, cache.keys.rows(span.first_position, rows),
                                   cache.values.rows(span.first_position, rows), ex);
        s != status::ok)
      return s;
  }
  parallel_for(ex.threads, static_cast<std::int64_t>(plan_.runs.size()), [&](std::int64_t i, int) {
    auto const& run = plan_.runs[static_cast<std::size_t>(i)];
    auto const& cache = caches[static_cast<std::size_t>(run.request)];
    auto const start = span_of(plan_, run).start;
    copy_rows(k.rows(run.first_row, run.rows), cache.keys.rows(start, run.rows));
    copy_rows(v.rows(run.first_row, run.rows), cache.values.rows(start, run.rows));
  });

  auto const requests = static_cast<std::int64_t>(caches.size());
  auto* const views = scratch(ex.workspace).take<key_value_view>(requests);
  for (std::int64_t r = 0; r < requests; ++r) {
    auto const& cache = caches[static_cast<std::size_t>(r)];
    std::construct_at(views + r, key_value_view{cache.keys, cache.values});
  }
  auto inner = ex;
  inner.workspace = ex.workspace.subspan(static_cast<std::size_t>(view_bytes(*walk) + scratch_alignment));
  return seam_attention(walk->plan, q, positions_, {views, caches.size()}, {}, o, {}, inner);
}

}  // namespace hypic::inline v0
