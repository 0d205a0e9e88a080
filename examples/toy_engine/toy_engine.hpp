// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "hypic/request/assembler.hpp"
#include "hypic/segment/rebase_keys.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/cache_store.hpp"
#include "toy_model.hpp"

/// The engine: all that it takes to serve prompts of cached pieces from any store.
namespace toy {

using record_block = std::vector<std::byte>;

/// Scratch for one call.
inline hypic::host_exec lend(std::int64_t bytes) {
  static std::vector<std::byte> scratch;
  scratch.resize(static_cast<std::size_t>(bytes));
  return {.workspace = scratch};
}

// [begin first pass]
/// The first pass: a segment alone, from position 0 and from nothing, into the windows of its record.
inline record_block compute(hypic::record_layout const& record, std::span<std::int32_t const> tokens) {
  record_block block(static_cast<std::size_t>(record.bytes()));
  auto const rows = record.tokens();
  std::vector<std::int64_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::uint32_t flags = 0;
  auto const run_linear = [&](hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) {
    auto const plan = take(hypic::plan_segment_prefill(family::id, linear.dims, linear.options, layout.head_rows, rows,
                                                       /*slots=*/0, {{.rows = rows}}));
    auto const head = record.head(0, block.data());
    auto const body = record.body(0, block.data());
    hypic::prefill_outputs const out{.o = o, .bodies = {&body, 1}, .heads = {&head, 1}, .flags = {&flags, 1}};
    require(hypic::segment_prefill<family>(plan, in, out, lend(plan.workspace_bytes(1))));
  };
  auto const run_attention = [&](auto const& q, auto const& k, auto const& v, auto const& o) {
    hypic::key_value_view const cache{record.keys(1, block.data()), record.values(1, block.data())};
    require(hypic::rebase_keys({}, k, v, record.keys(1, block.data()), record.values(1, block.data()), {}));  // a copy
    auto const plan = hypic::plan_attention(attention, rows, {{.rows = rows, .keys = rows}});
    require(hypic::seam_attention(plan, q, positions, {&cache, 1}, {}, o, {}, lend(plan.workspace_bytes(1))));
  };
  forward(tokens, positions, run_linear, run_attention);
  if ((flags & ~hypic::expansive_update) != 0) require({hypic::status::invalid_argument, "values of a segment"});
  return block;
}
// [end first pass]

/// What decoding goes on from: the linear layer's state, the attention layer's cache, the last token's row.
struct served {
  floats state, keys, values, last;
  int hits = 0, computed = 0;
};

// [begin serve]
inline served serve(hypic::cache_store& store, std::vector<hypic::prompt_span> const& prompt, std::int32_t seam_rows) {
  auto const request = take(hypic::plan_request(layout, prompt, {.seam_rows = seam_rows}));
  auto const batch = take(hypic::plan_batch({{.plan = request, .final_slot = 0}}));

  // The records that the plan reuses, each once, and whose they are.
  std::vector<hypic::record_layout> layouts(batch.records.size());
  std::vector<hypic::lookup_request> wanted(batch.records.size());
  for (std::size_t run = 0; run < batch.runs.size(); ++run) {
    if (batch.record_of[run] < 0) continue;
    auto const i = static_cast<std::size_t>(batch.record_of[run]);
    auto const& span = prompt[static_cast<std::size_t>(batch.runs[run].span)];
    layouts[i] = take(hypic::record_layout::make(layout, static_cast<std::int64_t>(span.tokens.size())));
    wanted[i] = {.key = span.key, .tokens = span.tokens, .layout = &layouts[i]};
  }
  auto const ticket = take(store.begin(wanted));
  std::vector<hypic::lookup_result> found(wanted.size());
  do require(store.poll(ticket, found));
  while (std::ranges::count(found, hypic::lookup_state::pending, &hypic::lookup_result::state) > 0);

  served out;
  std::vector<record_block> computed(found.size());
  std::vector<hypic::record_view> records;
  for (std::size_t i = 0; i < found.size(); ++i) {
    bool const hit = found[i].state == hypic::lookup_state::hit;
    ++(hit ? out.hits : out.computed);
    if (!hit) {
      computed[i] = compute(layouts[i], wanted[i].tokens);
      auto const digests = take(hypic::part_digests(layouts[i], computed[i]));
      hypic::publish_request const record{.key = wanted[i].key,
                                          .tokens = wanted[i].tokens,
                                          .layout = &layouts[i],
                                          .block = computed[i],
                                          .digests = digests,
                                          .value = layouts[i].tokens()};
      hypic::status outcome;
      static_cast<void>(store.publish({&record, 1}, {&outcome, 1}));  // a store may be full: that costs time alone
    }
    records.push_back({&layouts[i], hit ? found[i].block.data() : computed[i].data()});
  }

  // [begin second pass]
  // The plan's rows through the model; final states, keys and values lie in the engine's own memory.
  auto const assembler = take(hypic::assembler::make(layout, batch, records, /*state_slots=*/1));
  auto const bytes = assembler.workspace_bytes(1);
  out.state.resize(heads * dim * dim);
  out.keys.resize(static_cast<std::size_t>(request.prompt_tokens * dim));
  out.values = out.keys;
  auto const states = hypic::dense_view(out.state.data(), 1, heads, dim, dim);
  hypic::request_cache const cache{hypic::dense_view(out.keys.data(), request.prompt_tokens, 1, dim),
                                   hypic::dense_view(out.values.data(), request.prompt_tokens, 1, dim)};
  auto const rows = forward(
      request.row_tokens, request.row_positions,
      [&](auto const& in, auto const& o) { require(assembler.linear(0, in, {.o = o, .states = states}, lend(bytes))); },
      [&](auto const& q, auto const& k, auto const& v, auto const& o) {
        require(assembler.attention(1, q, k, v, {&cache, 1}, o, lend(bytes)));
      });
  // [end second pass]
  require(store.release(ticket));  // nothing reads the records any more
  out.last.assign(rows.end() - width, rows.end());
  return out;
}
// [end serve]

}  // namespace toy
