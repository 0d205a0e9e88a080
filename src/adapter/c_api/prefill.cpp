// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "adapter/c_api/c_api.hpp"
#include "core/calls.hpp"

using namespace hypic::c_api;
using hypic::status;

struct hypic_prefill {
  hypic_model model;
  std::vector<piece> pieces;
  std::int64_t total_rows = 0;
  std::int64_t slots = 0;

  prefill_batch batch() const noexcept { return {model, pieces, total_rows, slots}; }
};

namespace {

bool uses_slots(std::span<piece const> pieces) noexcept {
  return std::ranges::any_of(pieces,
                             [](piece const& p) { return p.sequence.initial_slot >= 0 || p.sequence.final_slot >= 0; });
}

/// ok where a pool has the shape, or is not given and not used.
template <class Pool>
status expect_pool(char const* name, Pool const& pool, decltype(pool.extent) const& wanted,
                   std::span<piece const> pieces) noexcept {
  if (!uses_slots(pieces) && pool.empty()) return status::ok;
  return hypic::expect_shape(name, pool, wanted, hypic::last_stride::any);
}

hypic::attention_plan attention_plan_of(prefill_batch const& batch, hypic::attention_layer const& shape) {
  std::vector<hypic::attention_sequence> sequences;
  for (auto const& [sequence, record, block] : batch.pieces)
    sequences.push_back({sequence.first_row, sequence.rows, sequence.position + sequence.rows});
  return hypic::plan_attention(shape, batch.total_rows, std::move(sequences));
}

void copy_rows(hypic::tensor_view<float const, 3> from, hypic::tensor_view<float, 3> to) noexcept {
  for (std::int64_t i = 0; i < to.extent[0]; ++i)
    for (std::int64_t h = 0; h < to.extent[1]; ++h) std::copy_n(&from(i, h, 0), to.extent[2], &to(i, h, 0));
}

/// The keys and values of a piece's segment so far, once those of its own rows are in the record.
hypic::key_value_view cache_of(piece const& one, std::int32_t layer, hypic::tensor_view<float, 3> k,
                               hypic::tensor_view<float, 3> v) noexcept {
  auto const& [first, rows, position, initial, final] = one.sequence;
  auto const own_k = k.rows(first, rows);
  auto const own_v = v.rows(first, rows);
  if (one.record == nullptr) return {own_k, own_v};
  auto const keys = one.record->layout.keys(layer, one.block);
  auto const values = one.record->layout.values(layer, one.block);
  copy_rows(own_k, keys.rows(position, rows));
  copy_rows(own_v, values.rows(position, rows));
  return {keys, values};
}

status check_piece(hypic_model const& model, piece const& one) {
  if (one.sequence.position > 0 && one.sequence.initial_slot < 0) {
    bool const has_state = std::ranges::any_of(model.layout.layers, [](hypic::model_layer const& layer) {
      return std::holds_alternative<hypic::linear_layer>(layer);
    });
    if (has_state) {
      return {status::invalid_argument, "sequences.initial_slot", one.sequence.initial_slot, status::relation::at_least,
              0};
    }
  }
  if (one.record == nullptr) return status::ok;
  if (one.block == nullptr) return {status::invalid_argument, "sequences.block"};
  if (auto const s = expect_record(model, *one.record); s != status::ok) return s;
  auto const end = one.sequence.position + one.sequence.rows;
  auto const tokens = one.record->layout.tokens();
  if (end <= tokens) return status::ok;
  return {status::invalid_shape, "sequences: position + rows", end, status::relation::at_most, tokens};
}

status check_pieces(prefill_batch const& batch) {
  std::vector<hypic::prefill_sequence> sequences;
  std::vector<std::byte const*> blocks;
  for (auto const& one : batch.pieces) {
    sequences.push_back(one.sequence);
    if (one.record != nullptr) blocks.push_back(one.block);
  }
  // Of any layer: where the rows lie, and which slots they use, has nothing to do with its shape.
  auto const plan = hypic::plan_segment_prefill(hypic::family_id::retnet, {1, 1, 1, 1}, {}, 0, batch.total_rows,
                                                batch.slots, sequences);
  if (!plan) return plan.error();
  auto const rows_of = [&](std::int64_t i) {
    auto const& one = sequences[static_cast<std::size_t>(i)];
    return std::pair{one.first_row, one.rows};
  };
  if (!hypic::share_no_row(static_cast<std::int64_t>(sequences.size()), rows_of))
    return {status::invalid_shape, "sequences: two that share a row"};
  for (auto const& one : batch.pieces)
    if (auto const s = check_piece(batch.model, one); s != status::ok) return s;
  std::ranges::sort(blocks);
  if (std::ranges::adjacent_find(blocks) != blocks.end())
    return {status::invalid_argument, "sequences.block: two that are one"};
  return status::ok;
}

}  // namespace

namespace hypic::inline v0::c_api {

status prefill_batch::linear(std::int32_t layer, hypic_rows const* rows, hypic_tensor const& o,
                             hypic_tensor const& states, std::uint32_t* flags, hypic_exec const* exec) const {
  auto const* shape = find_layer<linear_layer>(model, layer);
  if (shape == nullptr) return {status::invalid_argument, "layer: it is not a linear layer"};
  auto const& dims = shape->dims;
  query_rows_view in;
  prefill_outputs out;
  host_exec ex;
  if (auto const s = first_failure(rows_of(rows, in, shape->options.gates), exec_of(exec, ex), view_of(o, "o", out.o),
                                   view_of(states, "states", out.states));
      s != status::ok)
    return s;
  if (auto const s = expect_pool("states", out.states, {slots, dims.value_heads, dims.key_dim, dims.value_dim}, pieces);
      s != status::ok)
    return s;
  std::vector<prefill_sequence> sequences;
  std::vector<rows_view> heads;
  std::vector<summary_view> bodies;
  for (auto const& [sequence, record, block] : pieces) {
    sequences.push_back(sequence);
    heads.push_back(record == nullptr ? rows_view{} : record->layout.head(layer, block));
    bodies.push_back(record == nullptr ? summary_view{} : record->layout.body(layer, block));
  }
  auto const plan = plan_segment_prefill(shape->family, dims, shape->options, model.layout.head_rows, total_rows, slots,
                                         std::move(sequences));
  if (!plan) return plan.error();
  out.heads = heads;
  out.bodies = bodies;
  out.flags = {flags, pieces.size()};
  return with_family(shape->family, [&]<class F>(F) { return segment_prefill<F>(*plan, in, out, ex); });
}

status prefill_batch::attention(std::int32_t layer, hypic_tensor const& q, hypic_tensor const& k, hypic_tensor const& v,
                                hypic_tensor const& o, hypic_exec const* exec) const {
  auto const* shape = find_layer<attention_layer>(model, layer);
  if (shape == nullptr) return {status::invalid_argument, "layer: it is not an attention layer"};
  auto const plan = attention_plan_of(*this, *shape);
  tensor_view<float, 3> queries, keys, values, out;
  host_exec ex;
  if (auto const s = first_failure(view_of(q, "q", queries), view_of(k, "k", keys), view_of(v, "v", values),
                                   view_of(o, "o", out), exec_of(exec, ex));
      s != status::ok)
    return s;
  if (auto const s =
          first_failure(validate(plan), expect_shape("q", queries, {total_rows, shape->query_heads, shape->key_dim}),
                        expect_shape("k", keys, {total_rows, shape->kv_heads, shape->key_dim}),
                        expect_shape("v", values, {total_rows, shape->kv_heads, shape->value_dim}),
                        expect_shape("o", out, {total_rows, shape->query_heads, shape->value_dim}),
                        expect_apart("o overlaps an input", out, queries, keys, values),
                        expect_exec(ex, plan.workspace_bytes(ex.threads)));
      s != status::ok)
    return s;
  for (auto const& one : pieces)
    if (one.record == nullptr && one.sequence.position > 0)
      return {status::invalid_argument, "sequences.position", one.sequence.position, status::relation::equal_to, 0};

  std::vector<std::int64_t> positions(static_cast<std::size_t>(total_rows));
  std::vector<key_value_view> caches(pieces.size());
  for (auto const& one : pieces) {
    auto const first = positions.begin() + one.sequence.first_row;
    std::iota(first, first + one.sequence.rows, one.sequence.position);
  }
  std::ranges::transform(pieces, caches.begin(), [&](piece const& one) { return cache_of(one, layer, keys, values); });
  return seam_attention(plan, queries, positions, caches, {}, out, {}, ex);
}

std::int64_t prefill_batch::workspace_bytes(std::int32_t layer, int threads) const {
  if (auto const* attention = find_layer<attention_layer>(model, layer))
    return attention_plan_of(*this, *attention).workspace_bytes(threads);
  auto const& shape = *find_layer<linear_layer>(model, layer);
  prefill_plan plan;  // the sequences take no scratch
  plan.family = shape.family;
  plan.dims = shape.dims;
  return plan.workspace_bytes(threads);
}

}  // namespace hypic::inline v0::c_api

extern "C" {

hypic_status hypic_prefill_create(hypic_model const* model, hypic_sequence const* sequences, int64_t count,
                                  int64_t total_rows, int64_t slots, hypic_prefill** prefill) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"prefill", prefill}}); s != status::ok) return s;
    std::vector<hypic_sequence> given;
    if (auto const s = read_all(sequences, count, "sequences", given); s != status::ok) return s;
    std::vector<piece> pieces;
    for (auto const& one : given)
      pieces.push_back({{one.first_row, one.rows, one.position, one.initial_slot, one.final_slot},
                        one.record,
                        static_cast<std::byte*>(one.block)});
    if (auto const s = check_pieces({*model, pieces, total_rows, slots}); s != status::ok) return s;
    *prefill = new hypic_prefill{*model, std::move(pieces), total_rows, slots};
    return status::ok;
  });
}
void hypic_prefill_destroy(hypic_prefill* prefill) { delete prefill; }

hypic_status hypic_prefill_workspace_bytes(hypic_prefill const* prefill, int32_t threads, int64_t* bytes) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"prefill", prefill}, {"bytes", bytes}}); s != status::ok) return s;
    std::int64_t most = 0;
    for (std::size_t layer = 0; layer < prefill->model.layout.layers.size(); ++layer)
      most = std::max(most, prefill->batch().workspace_bytes(static_cast<std::int32_t>(layer), threads));
    *bytes = most;
    return status::ok;
  });
}

hypic_status hypic_prefill_linear(hypic_prefill const* prefill, int32_t layer, hypic_rows const* rows, hypic_tensor o,
                                  hypic_tensor states, uint32_t* flags, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"prefill", prefill}, {"flags", flags}}); s != status::ok) return s;
    return prefill->batch().linear(layer, rows, o, states, flags, exec);
  });
}

int64_t hypic_prefill_chunk(int32_t family) { return hypic::prefill_chunk(static_cast<hypic::family_id>(family)); }

hypic_status hypic_prefill_tails(hypic_prefill const* prefill, int32_t layer, hypic_tensor raw, hypic_tensor pool,
                                 hypic_tensor tails) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"prefill", prefill}}); s != status::ok) return s;
    auto const* shape = find_layer<hypic::linear_layer>(prefill->model, layer);
    if (shape == nullptr || shape->tail_rows == 0) return {status::invalid_argument, "layer: it has no convolution"};
    std::int64_t const length = shape->tail_rows, channels = shape->tail_channels;
    auto const count = static_cast<std::int64_t>(prefill->pieces.size());
    hypic::tensor_view<float, 2> rows;
    hypic::tensor_view<float, 3> slots, before;
    if (auto const s = hypic::first_failure(view_of(raw, "raw", rows), view_of(pool, "pool", slots),
                                            view_of(tails, "tails", before));
        s != status::ok)
      return s;
    if (auto const s = hypic::first_failure(
            hypic::expect_shape("raw", rows, {prefill->total_rows, channels}, hypic::last_stride::any),
            hypic::expect_shape("tails", before, {count, length, channels}, hypic::last_stride::any),
            expect_pool("pool", slots, {prefill->slots, length, channels}, prefill->pieces),
            hypic::expect_apart("tails overlaps an input", before, rows, slots),
            hypic::expect_apart("pool overlaps raw", slots, rows));
        s != status::ok)
      return s;
    for (std::int64_t i = 0; i < count; ++i) {
      auto const& [sequence, record, block] = prefill->pieces[static_cast<std::size_t>(i)];
      auto const& one = sequence;
      for (std::int64_t r = 0; r < length; ++r)
        for (std::int64_t c = 0; c < channels; ++c)
          before(i, r, c) = one.initial_slot < 0 ? 0.0f : slots(one.initial_slot, r, c);
      // Token t of the piece; those below 0 stand before it.
      auto const element = [&](std::int64_t t, std::int64_t c) {
        return t < 0 ? before(i, length + t, c) : rows(one.first_row + t, c);
      };
      for (std::int64_t r = 0; one.final_slot >= 0 && r < length; ++r)
        for (std::int64_t c = 0; c < channels; ++c) slots(one.final_slot, r, c) = element(one.rows - length + r, c);
      if (record != nullptr && one.position + one.rows == record->layout.tokens())
        write_tail(*record, layer, block, [&](std::int64_t t, std::int64_t c) { return element(t - one.position, c); });
    }
    return status::ok;
  });
}

hypic_status hypic_prefill_attention(hypic_prefill const* prefill, int32_t layer, hypic_tensor q, hypic_tensor k,
                                     hypic_tensor v, hypic_tensor o, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"prefill", prefill}}); s != status::ok) return s;
    return prefill->batch().attention(layer, q, k, v, o, exec);
  });
}

}  // extern "C"
