// SPDX-License-Identifier: Apache-2.0
// An engine that prefills in pieces: a segment goes through a KDA layer in three calls, then a request over two cached
// spans is assembled in two. States wait in the engine's own slots between the calls. Both give the bits of one call.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "hypic/segment/seam_repair.hpp"
#include "hypic/segment/segment_prefill.hpp"

namespace {

using family = hypic::kda;
constexpr hypic::state_dims dims{.key_heads = 2, .value_heads = 2, .key_dim = 32, .value_dim = 48};
constexpr hypic::row_options options{.q_scale = 0.25f, .l2_normalize = true};
constexpr std::int32_t head_rows = 8;

void require(hypic::status outcome) {
  if (outcome == hypic::status::ok) return;
  std::fprintf(stderr, "%s\n", hypic::message(outcome).c_str());
  std::exit(1);
}

template <class... Extent>
std::vector<float> floats(Extent... extents) {
  return std::vector<float>(static_cast<std::size_t>((std::int64_t{1} * ... * extents)));
}

/// What the layer's projections would give.
struct layer_rows {
  std::int64_t tokens;
  std::vector<float> q = floats(tokens, dims.key_heads, dims.key_dim), k = q;
  std::vector<float> v = floats(tokens, dims.value_heads, dims.value_dim);
  std::vector<float> gates = floats(tokens, dims.value_heads, dims.key_dim), beta = floats(tokens, dims.value_heads);

  layer_rows(std::int64_t count, unsigned seed) : tokens(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* values : {&q, &k, &v})
      for (auto& x : *values) x = normal(random);
    for (auto& x : gates) x = -0.01f * std::abs(normal(random));
    for (auto& x : beta) x = 1.0f / (1.0f + std::exp(-normal(random)));
  }
  hypic::query_rows_view view(std::int64_t first, std::int64_t count) const {
    hypic::const_rows_view const rows{hypic::dense_view(k.data(), tokens, dims.key_heads, dims.key_dim),
                                      hypic::dense_view(v.data(), tokens, dims.value_heads, dims.value_dim),
                                      hypic::dense_view(gates.data(), tokens, dims.value_heads, dims.key_dim),
                                      hypic::dense_view(beta.data(), tokens, dims.value_heads)};
    auto const queries = hypic::dense_view(q.data(), tokens, dims.key_heads, dims.key_dim);
    return {queries.rows(first, count), rows.slice(first, count)};
  }
};

/// The engine's memory: two slots of states, outputs, a body, scratch that grows as plans ask.
struct engine_memory {
  std::vector<float> states = floats(2, dims.value_heads, dims.key_dim, dims.value_dim);
  std::vector<float> op = floats(dims.value_heads, dims.key_dim, dims.key_dim);
  std::vector<float> end_state = floats(dims.value_heads, dims.key_dim, dims.value_dim);
  std::vector<float> o;
  std::vector<std::byte> scratch;

  explicit engine_memory(std::int64_t tokens) : o(floats(tokens, dims.value_heads, dims.value_dim)) {}

  hypic::tensor_view<float, 4> slots() {
    return hypic::dense_view(states.data(), 2, dims.value_heads, dims.key_dim, dims.value_dim);
  }
  hypic::tensor_view<float, 3> outputs(std::int64_t first, std::int64_t count) {
    auto const tokens = static_cast<std::int64_t>(o.size()) / (dims.value_heads * dims.value_dim);
    return hypic::dense_view(o.data(), tokens, dims.value_heads, dims.value_dim).rows(first, count);
  }
  hypic::summary_view body() {
    return {hypic::dense_view(op.data(), dims.value_heads, dims.key_dim * dims.key_dim),
            hypic::dense_view(end_state.data(), dims.value_heads, dims.key_dim, dims.value_dim)};
  }
  hypic::host_exec lend(std::int64_t bytes) {
    scratch.resize(static_cast<std::size_t>(bytes));
    return {.workspace = scratch, .threads = 2};
  }
};

bool same(std::vector<float> const& left, std::vector<float> const& right) {
  return std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

// [begin chunk]
/// Tokens [first, first + count) of the segment, whose state so far waits in slot 0.
void prefill_piece(engine_memory& memory, layer_rows const& rows, std::int64_t first, std::int64_t count) {
  hypic::prefill_sequence const piece{
      .rows = count, .position = first, .initial_slot = first == 0 ? -1 : 0, .final_slot = 0};
  // A sequence goes on in the slot that it left.
  auto const plan = hypic::plan_segment_prefill(family::id, dims, options, head_rows, count, /*slots=*/2, {piece});
  require(plan.error());
  auto const body = memory.body();
  require(hypic::segment_prefill<family>(
      *plan, rows.view(first, count),
      {.o = memory.outputs(first, count), .states = memory.slots(), .bodies = {&body, 1}},
      memory.lend(plan->workspace_bytes(2))));
}
// [end chunk]

/// Spans [first, first + count) of a request over two reuses of one record, seams of eight rows.
void repair_spans(engine_memory& memory, layer_rows const& seams, std::vector<hypic::cached_span> const& records,
                  std::int64_t first, std::int64_t count) {
  std::vector<hypic::seam_span> spans;
  for (std::int32_t s = 0; s < 2; ++s)
    spans.push_back(
        {.first_row = s * head_rows, .rows = head_rows, .cached = s, .head_rows = head_rows, .has_body = true});
  hypic::seam_chain const chain{
      .first_span = first, .spans = count, .initial_slot = first == 0 ? -1 : 1, .final_slot = 1};
  auto const plan =
      hypic::plan_seam_repair(family::id, dims, options, 2 * head_rows, /*slots=*/2, /*records=*/2, spans, {chain});
  require(plan.error());
  require(hypic::seam_repair<family>(*plan, seams.view(0, 2 * head_rows), records,
                                     {.o = memory.outputs(0, 2 * head_rows), .states = memory.slots()},
                                     memory.lend(plan->workspace_bytes(2))));
}

}  // namespace

int main() {
  // Bits stay where a break lies at W plus a multiple of prefill_chunk.
  auto const chunk = hypic::prefill_chunk(family::id);
  auto const tokens = head_rows + 2 * chunk + 100;
  layer_rows const rows(tokens, 1);
  engine_memory whole(tokens), pieces(tokens);
  prefill_piece(whole, rows, 0, tokens);
  prefill_piece(pieces, rows, 0, head_rows + chunk);
  prefill_piece(pieces, rows, head_rows + chunk, chunk);
  prefill_piece(pieces, rows, head_rows + 2 * chunk, 100);
  bool const prefill_same = same(whole.o, pieces.o) && same(whole.op, pieces.op) &&
                            same(whole.end_state, pieces.end_state) && same(whole.states, pieces.states);

  std::vector<hypic::cached_span> const records(2, {.head = rows.view(0, head_rows).rows, .body = whole.body()});
  layer_rows const seams(2 * head_rows, 2);
  engine_memory once(2 * head_rows), twice(2 * head_rows);
  repair_spans(once, seams, records, 0, 2);
  repair_spans(twice, seams, records, 0, 1);
  repair_spans(twice, seams, records, 1, 1);
  bool const assembly_same = same(once.o, twice.o) && same(once.states, twice.states);

  std::printf("prefill in three calls: %s\nassembly in two calls: %s\n", prefill_same ? "same bits" : "other bits",
              assembly_same ? "same bits" : "other bits");
  return prefill_same && assembly_same ? 0 : 1;
}
