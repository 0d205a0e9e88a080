// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "adapter/c_values.hpp"
#include "hypic.h"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/record.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int32_t head_rows = 8, tail_rows = 3, channels = 16, groups = 2, linear = 0, attention = 1, rotary = 2;
constexpr state_dims delta_dims{1, 2, 5, 6}, rotary_dims{2, 2, 4, 3};
constexpr std::int32_t query_heads = 4, kv_heads = 2, key_dim = 6, value_dim = 5;
std::vector<double> const frequencies{1.0, 0.25};

/// A delta-rule layer with a convolution, a rotary attention layer, and a rotary layer with scalar operators.
struct model_of_c {
  hypic_model* handle = nullptr;

  explicit model_of_c(std::int32_t values = value_dim) {
    hypic_layer layers[3]{};
    for (auto& layer : layers) layer.size = sizeof layer;
    auto& delta = layers[linear];
    delta.kind = HYPIC_LINEAR;
    delta.family = HYPIC_GATED_DELTANET;
    delta.key_heads = delta_dims.key_heads;
    delta.value_heads = delta_dims.value_heads;
    delta.key_dim = delta_dims.key_dim;
    delta.value_dim = delta_dims.value_dim;
    delta.q_scale = 0.5f;
    delta.l2_normalize = 1;
    delta.l2_epsilon = 1e-6f;
    delta.tail_rows = tail_rows;
    delta.tail_channels = channels;
    delta.tail_groups = groups;
    auto& softmax = layers[attention];
    softmax.kind = HYPIC_ATTENTION;
    softmax.query_heads = query_heads;
    softmax.kv_heads = kv_heads;
    softmax.key_dim = key_dim;
    softmax.value_dim = values;
    softmax.scale = 0.4f;
    auto& turned = layers[rotary];
    turned.kind = HYPIC_LINEAR;
    turned.family = HYPIC_RETNET;
    turned.key_heads = turned.value_heads = rotary_dims.value_heads;
    turned.key_dim = rotary_dims.key_dim;
    turned.value_dim = rotary_dims.value_dim;
    turned.q_scale = 1.0f;
    for (auto* layer : {&softmax, &turned}) {
      layer->frequencies = frequencies.data();
      layer->pairs = static_cast<std::int32_t>(frequencies.size());
      layer->pairing = HYPIC_ROTATE_HALF;
    }
    hypic_model_info info{};
    info.size = sizeof info;
    info.layers = layers;
    info.layer_count = 3;
    info.head_rows = head_rows;
    REQUIRE(words(hypic_model_create(&info, &handle)) == "ok");
  }
  model_of_c(model_of_c const&) = delete;
  model_of_c& operator=(model_of_c const&) = delete;
  ~model_of_c() { hypic_model_destroy(handle); }
};

struct record_of_c {
  hypic_record* handle = nullptr;
  std::vector<char> block;

  record_of_c(model_of_c const& model, std::int64_t tokens) {
    REQUIRE(words(hypic_record_create(model.handle, tokens, &handle)) == "ok");
    block.resize(static_cast<std::size_t>(hypic_record_bytes(handle)), '\xff');  // NaN where nothing is written
  }
  record_of_c(record_of_c const&) = delete;
  record_of_c& operator=(record_of_c const&) = delete;
  ~record_of_c() { hypic_record_destroy(handle); }

  /// The parts whose bytes are not those of another block.
  std::vector<std::int64_t> parts_unlike(record_of_c const& other) const {
    std::vector<std::int64_t> unlike;
    for (std::int64_t i = 0; i < hypic_record_part_count(handle); ++i) {
      std::int64_t at = 0, bytes = 0;
      hypic_record_part_place(handle, i, &at, &bytes);
      if (std::memcmp(block.data() + at, other.block.data() + at, static_cast<std::size_t>(bytes)) != 0)
        unlike.push_back(i);
    }
    return unlike;
  }
};

/// What the layers' projections would give for the tokens of one segment, and what the layers give back.
struct segment_rows {
  std::int64_t tokens;
  std::mt19937 random;
  values raw, delta_q, delta_k, delta_v, delta_gates, delta_beta, q, k, v, turned_q, turned_k, turned_v, turned_gates;

  segment_rows(std::int64_t count, unsigned seed)
      : tokens(count),
        random(seed),
        raw({count, channels}, random),
        delta_q({count, 1, 5}, random),
        delta_k({count, 1, 5}, random),
        delta_v({count, 2, 6}, random),
        delta_gates({count, 2, 1}, random),
        delta_beta({count, 2}, random),
        q({count, query_heads, key_dim}, random),
        k({count, kv_heads, key_dim}, random),
        v({count, kv_heads, value_dim}, random),
        turned_q({count, 2, 4}, random),
        turned_k({count, 2, 4}, random),
        turned_v({count, 2, 3}, random),
        turned_gates({count, 2, 1}, random) {
    for (auto* gates : {&delta_gates, &turned_gates})
      for (auto& x : gates->data) x = -0.01f * std::abs(x);
    for (auto& x : delta_beta.data) x = 1.0f / (1.0f + std::exp(-x));
  }
  hypic_rows delta(std::int64_t first = 0, std::int64_t rows = -1) {
    return {sizeof(hypic_rows),        delta_q.in_c(first, rows),     delta_k.in_c(first, rows),
            delta_v.in_c(first, rows), delta_gates.in_c(first, rows), delta_beta.in_c(first, rows)};
  }
  hypic_rows turned(std::int64_t first = 0, std::int64_t rows = -1) {
    return {sizeof(hypic_rows),         turned_q.in_c(first, rows),     turned_k.in_c(first, rows),
            turned_v.in_c(first, rows), turned_gates.in_c(first, rows), hypic_tensor{}};
  }
};

struct segment_outputs {
  values delta, softmax, turned;
  explicit segment_outputs(std::int64_t tokens)
      : delta({tokens, 2, 6}, 0.0f), softmax({tokens, query_heads, value_dim}, 0.0f), turned({tokens, 2, 3}, 0.0f) {}
  bool operator==(segment_outputs const&) const = default;
};

/// All layers of a segment in one call each.
segment_outputs run_whole(model_of_c const& model, segment_rows& rows, record_of_c& record) {
  segment_outputs out(rows.tokens);
  auto const scratch = [&](std::int32_t layer) {
    std::int64_t bytes = 0;
    REQUIRE(words(hypic_segment_workspace_bytes(model.handle, layer, rows.tokens, 2, &bytes)) == "ok");
    return lent(bytes);
  };
  auto* const block = record.block.data();
  auto const delta = rows.delta(), turned = rows.turned();
  REQUIRE(words(hypic_segment_linear(model.handle, linear, &delta, out.delta.in_c(), record.handle, block,
                                     scratch(linear).get())) == "ok");
  REQUIRE(words(hypic_segment_tail(model.handle, linear, rows.raw.in_c(), record.handle, block)) == "ok");
  REQUIRE(words(hypic_segment_attention(model.handle, attention, rows.q.in_c(), rows.k.in_c(), rows.v.in_c(),
                                        out.softmax.in_c(), record.handle, block, scratch(attention).get())) == "ok");
  REQUIRE(words(hypic_segment_linear(model.handle, rotary, &turned, out.turned.in_c(), record.handle, block,
                                     scratch(rotary).get())) == "ok");
  return out;
}

/// Pools of two slots, whose contents nobody may read before they were written.
struct slot_pools {
  values delta{{2, 2, 5, 6}, std::numeric_limits<float>::quiet_NaN()};
  values turned{{2, 2, 4, 3}, std::numeric_limits<float>::quiet_NaN()};
  values tails{{2, tail_rows, channels}, std::numeric_limits<float>::quiet_NaN()};
};

hypic_sequence piece(std::int64_t rows, std::int64_t position, std::int32_t slot, record_of_c* record) {
  hypic_sequence made{};
  made.size = sizeof made;
  made.rows = rows;
  made.position = position;
  made.initial_slot = position == 0 ? -1 : slot;
  made.final_slot = slot;
  if (record != nullptr) {
    made.record = record->handle;
    made.block = record->block.data();
  }
  return made;
}

/// All layers of one piece of a segment; the tail that stands before it is checked.
void run_piece(model_of_c const& model, segment_rows& rows, hypic_sequence const& of, slot_pools& pools,
               segment_outputs& out) {
  auto const first = of.position, count = of.rows;
  hypic_prefill* prefill = nullptr;
  REQUIRE(words(hypic_prefill_create(model.handle, &of, 1, count, 2, &prefill)) == "ok");
  std::int64_t bytes = 0;
  REQUIRE(words(hypic_prefill_workspace_bytes(prefill, 2, &bytes)) == "ok");
  lent scratch(bytes);
  std::uint32_t flags = 0;
  values before({1, tail_rows, channels}, -1.0f);
  auto const delta = rows.delta(first, count), turned = rows.turned(first, count);
  CHECK(words(hypic_prefill_tails(prefill, linear, rows.raw.in_c(first, count), pools.tails.in_c(), before.in_c())) ==
        "ok");
  CHECK(words(hypic_prefill_linear(prefill, linear, &delta, out.delta.in_c(first, count), pools.delta.in_c(), &flags,
                                   &scratch.exec)) == "ok");
  CHECK(words(hypic_prefill_linear(prefill, rotary, &turned, out.turned.in_c(first, count), pools.turned.in_c(), &flags,
                                   &scratch.exec)) == "ok");
  if (of.record != nullptr) {
    CHECK(words(hypic_prefill_attention(prefill, attention, rows.q.in_c(first, count), rows.k.in_c(first, count),
                                        rows.v.in_c(first, count), out.softmax.in_c(first, count), &scratch.exec)) ==
          "ok");
  }
  CHECK((flags & ~static_cast<std::uint32_t>(HYPIC_EXPANSIVE_UPDATE)) == 0);
  for (std::int64_t r = 0; r < tail_rows; ++r) {
    auto const token = first - tail_rows + r;
    for (std::int64_t c = 0; c < channels; ++c) {
      auto const found = before.data[static_cast<std::size_t>(r * channels + c)];
      auto const wanted = token < 0 ? 0.0f : rows.raw.data[static_cast<std::size_t>(token * channels + c)];
      REQUIRE(found == wanted);
    }
  }
  hypic_prefill_destroy(prefill);
}

double relative(std::vector<float> const& found, std::vector<double> const& wanted) {
  REQUIRE(found.size() == wanted.size());
  double error = 0.0, size = 1e-30;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - wanted[i], 2);
    size += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / size);
}

/// A vector turned by so many positions, rotate-half, the rest passing through.
void turn(std::vector<double>& all, std::size_t at, std::size_t step, double positions) {
  auto const pairs = frequencies.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    auto& x = all[at + i * step];
    auto& y = all[at + (i + pairs) * step];
    auto const angle = positions * frequencies[i];
    auto const turned = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = turned;
  }
}

}  // namespace

TEST_CASE("A segment in pieces gives the record, the outputs and the states of one call", "[adapter][c_api]") {
  model_of_c const model;
  auto const chunk = hypic_prefill_chunk(HYPIC_GATED_DELTANET);
  REQUIRE(chunk == prefill_chunk(family_id::gated_deltanet));
  auto const tokens = head_rows + 2 * chunk + 10;
  segment_rows rows(tokens, 1);
  record_of_c whole(model, tokens), pieces(model, tokens);
  auto const wanted = run_whole(model, rows, whole);

  slot_pools once, pools;
  segment_outputs out(tokens), unrecorded(tokens);
  std::int64_t first = 0;
  for (auto const count : {head_rows + chunk, chunk, std::int64_t{10}}) {
    run_piece(model, rows, piece(count, first, 1, &pieces), pools, out);
    first += count;
  }
  REQUIRE(first == tokens);
  CHECK(pieces.parts_unlike(whole).empty());
  CHECK(out == wanted);

  run_piece(model, rows, piece(tokens, 0, 1, nullptr), once, unrecorded);
  CHECK(once.delta.data[0] != once.delta.data[0]);  // slot 0 is nobody's
  auto const same_slot = [](values const& left, values const& right) {
    auto const half = left.data.size() / 2;
    return std::memcmp(left.data.data() + half, right.data.data() + half, half * sizeof(float)) == 0;
  };
  CHECK(same_slot(once.delta, pools.delta));
  CHECK(same_slot(once.turned, pools.turned));
  CHECK(same_slot(once.tails, pools.tails));
  CHECK((unrecorded.delta == wanted.delta && unrecorded.turned == wanted.turned));
}

TEST_CASE("A segment of C has the record that the C++ prefill makes", "[adapter][c_api]") {
  model_of_c const model;
  std::int64_t const tokens = 77;
  segment_rows rows(tokens, 2);
  record_of_c record(model, tokens);
  auto const out = run_whole(model, rows, record);

  row_options const options{.q_scale = 0.5f, .l2_normalize = true, .l2_epsilon = 1e-6f};
  auto const plan =
      plan_segment_prefill(family_id::gated_deltanet, delta_dims, options, head_rows, tokens, 0, {{.rows = tokens}});
  REQUIRE(plan);
  values o({tokens, 2, 6}, 0.0f), op({2, 25}, 0.0f), end_state({2, 5, 6}, 0.0f);
  summary_view const body{dense_view(op.data.data(), 2, 25), dense_view(end_state.data.data(), 2, 5, 6)};
  query_rows_view const in{dense_view(std::as_const(rows.delta_q.data).data(), tokens, 1, 5),
                           {dense_view(std::as_const(rows.delta_k.data).data(), tokens, 1, 5),
                            dense_view(std::as_const(rows.delta_v.data).data(), tokens, 2, 6),
                            dense_view(std::as_const(rows.delta_gates.data).data(), tokens, 2, 1),
                            dense_view(std::as_const(rows.delta_beta.data).data(), tokens, 2)}};
  std::vector<std::byte> scratch(static_cast<std::size_t>(plan->workspace_bytes(1)));
  REQUIRE(segment_prefill<gated_deltanet>(*plan, in,
                                          {.o = dense_view(o.data.data(), tokens, 2, 6), .bodies = {&body, 1}},
                                          {.workspace = scratch}) == status::ok);
  CHECK(o == out.delta);

  hypic_tensor operators{}, end_states{}, keys{}, stored{}, tail{};
  auto const* const block = record.block.data();
  REQUIRE(words(hypic_record_summary(model.handle, record.handle, linear, block, &operators, &end_states)) == "ok");
  REQUIRE((operators.rank == 2 && operators.extent[0] == 2 && operators.extent[1] == 25));
  REQUIRE((end_states.rank == 3 && end_states.extent[1] == 5 && end_states.extent[2] == 6));
  for (std::int64_t h = 0; h < 2; ++h) {
    CHECK(std::memcmp(operators.data + h * operators.stride[0], &op.data[static_cast<std::size_t>(25 * h)], 100) == 0);
    for (std::int64_t d = 0; d < 5; ++d)
      CHECK(std::memcmp(end_states.data + h * end_states.stride[0] + d * end_states.stride[1],
                        &end_state.data[static_cast<std::size_t>(30 * h + 6 * d)], 24) == 0);
  }
  REQUIRE(words(hypic_record_keys_values(model.handle, record.handle, attention, block, &keys, &stored)) == "ok");
  REQUIRE((keys.extent[0] == tokens && keys.extent[1] == kv_heads && keys.extent[2] == key_dim));
  REQUIRE((stored.extent[0] == tokens && stored.extent[1] == kv_heads && stored.extent[2] == value_dim));
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      REQUIRE(std::memcmp(keys.data + t * keys.stride[0] + h * keys.stride[1],
                          &rows.k.data[static_cast<std::size_t>((t * kv_heads + h) * key_dim)], 4 * key_dim) == 0);
      REQUIRE(std::memcmp(stored.data + t * stored.stride[0] + h * stored.stride[1],
                          &rows.v.data[static_cast<std::size_t>((t * kv_heads + h) * value_dim)], 4 * value_dim) == 0);
    }
  REQUIRE(words(hypic_record_tail(model.handle, record.handle, linear, block, &tail)) == "ok");
  REQUIRE((tail.extent[0] == tail_rows && tail.extent[1] == groups && tail.extent[2] == channels / groups));
  for (std::int64_t r = 0; r < tail_rows; ++r)
    for (std::int64_t c = 0; c < channels; ++c) {
      auto const width = channels / groups;
      auto const found = tail.data[r * tail.stride[0] + c / width * tail.stride[1] + c % width * tail.stride[2]];
      REQUIRE(found == rows.raw.data[static_cast<std::size_t>((tokens - tail_rows + r) * channels + c)]);
    }

  record_of_c const bodiless(model, head_rows);
  REQUIRE(words(hypic_record_summary(model.handle, bodiless.handle, linear, bodiless.block.data(), &operators,
                                     &end_states)) == "ok");
  CHECK((operators.rank == 0 && end_states.rank == 0));
  CHECK(words(hypic_record_tail(model.handle, record.handle, rotary, block, &tail)) ==
        "invalid_argument: layer: it has no convolution has no meaning here");
  CHECK(hypic_record_keys_values(model.handle, record.handle, linear, block, &keys, &stored).code ==
        HYPIC_INVALID_ARGUMENT);
}

TEST_CASE("Pieces of several segments go in one batch, and each has the bits that it has alone", "[adapter][c_api]") {
  model_of_c const model;
  // Rows of one packed input: a segment with a body, one that is all head, one that is shorter than a tail, one without
  // a record. The first goes on from what an earlier piece left.
  std::int64_t const early = 10, counts[] = {20, 6, 2, 15};
  std::int64_t const packed = 43;
  segment_rows rows(early + packed, 3);
  auto const sequences_in = [&](auto& records, bool alone) {
    std::vector<hypic_sequence> made;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      auto one = piece(counts[i], i == 0 ? early : 0, static_cast<std::int32_t>(i), i < 3 ? &records[i] : nullptr);
      one.first_row = alone ? 0 : first;
      made.push_back(one);
      first += counts[i];
    }
    return made;
  };
  struct three_records {
    record_of_c a, b, c;
    explicit three_records(model_of_c const& model) : a(model, 30), b(model, 6), c(model, 2) {}
    record_of_c& operator[](std::size_t i) { return i == 0 ? a : i == 1 ? b : c; }
  } together(model), apart(model);
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  values states_together({4, 2, 5, 6}, nan), states_apart = states_together;
  values tails_together({4, tail_rows, channels}, nan), tails_apart = tails_together;
  values out_together({packed, 2, 6}, 0.0f), out_apart = out_together;

  auto const run = [&](std::vector<hypic_sequence> const& sequences, std::int64_t from, std::int64_t total,
                       values& states, values& tails, hypic_tensor o) {
    hypic_prefill* prefill = nullptr;
    auto const count = static_cast<std::int64_t>(sequences.size());
    REQUIRE(words(hypic_prefill_create(model.handle, sequences.data(), count, total, 4, &prefill)) == "ok");
    std::int64_t bytes = 0;
    REQUIRE(words(hypic_prefill_workspace_bytes(prefill, 2, &bytes)) == "ok");
    lent scratch(bytes);
    std::vector<std::uint32_t> flags(sequences.size());
    values before({count, tail_rows, channels}, nan);
    values softmax({total, query_heads, value_dim}, nan);
    auto const delta = rows.delta(from, total), turned = rows.turned(from, total);
    CHECK(words(hypic_prefill_tails(prefill, linear, rows.raw.in_c(from, total), tails.in_c(), before.in_c())) == "ok");
    CHECK(words(hypic_prefill_linear(prefill, linear, &delta, o, states.in_c(), flags.data(), &scratch.exec)) == "ok");
    values turned_states({4, 2, 4, 3}, 0.0f);
    CHECK(words(hypic_prefill_linear(prefill, rotary, &turned, hypic_tensor{}, turned_states.in_c(), flags.data(),
                                     &scratch.exec)) == "ok");
    CHECK(words(hypic_prefill_attention(prefill, attention, rows.q.in_c(from, total), rows.k.in_c(from, total),
                                        rows.v.in_c(from, total), softmax.in_c(), &scratch.exec)) == "ok");
    hypic_prefill_destroy(prefill);
  };
  for (auto* records : {&together, &apart}) {
    auto& states = records == &together ? states_together : states_apart;
    auto& tails = records == &together ? tails_together : tails_apart;
    run({piece(early, 0, 0, &records->a)}, 0, early, states, tails, hypic_tensor{});
  }
  run(sequences_in(together, false), early, packed, states_together, tails_together, out_together.in_c());
  std::int64_t first = 0;
  for (auto const& one : sequences_in(apart, true)) {
    run({one}, early + first, one.rows, states_apart, tails_apart, out_apart.in_c(first, one.rows));
    first += one.rows;
  }
  for (std::size_t i = 0; i < 3; ++i) CHECK(together[i].parts_unlike(apart[i]).empty());
  CHECK(states_together == states_apart);
  CHECK(tails_together == tails_apart);
  CHECK(out_together == out_apart);
  CHECK(std::ranges::none_of(states_together.data, [](float x) { return std::isnan(x); }));
  CHECK(std::ranges::none_of(tails_together.data, [](float x) { return std::isnan(x); }));
}

TEST_CASE("Bad values are flagged in their sequence alone, in what is there already", "[adapter][c_api]") {
  model_of_c const model;
  segment_rows rows(20, 4);
  rows.delta_v.data[15 * 12] = std::numeric_limits<float>::quiet_NaN();
  hypic_sequence sequences[] = {piece(10, 0, -1, nullptr), piece(10, 0, -1, nullptr)};
  sequences[1].first_row = 10;
  hypic_prefill* prefill = nullptr;
  REQUIRE(words(hypic_prefill_create(model.handle, sequences, 2, 20, 0, &prefill)) == "ok");
  std::int64_t bytes = 0;
  REQUIRE(words(hypic_prefill_workspace_bytes(prefill, 2, &bytes)) == "ok");
  lent scratch(bytes);
  std::uint32_t flags[] = {1u << 20, 1u << 20};
  auto const delta = rows.delta();
  REQUIRE(words(hypic_prefill_linear(prefill, linear, &delta, hypic_tensor{}, hypic_tensor{}, flags, &scratch.exec)) ==
          "ok");
  CHECK(flags[0] == 1u << 20);
  CHECK(flags[1] == ((1u << 20) | HYPIC_NON_FINITE));
  static_assert(static_cast<std::uint32_t>(HYPIC_NON_FINITE) == non_finite &&
                static_cast<std::uint32_t>(HYPIC_GATE_OUT_OF_RANGE) == gate_out_of_range &&
                static_cast<std::uint32_t>(HYPIC_EXPANSIVE_UPDATE) == expansive_update);
  CHECK(words(hypic_prefill_linear(prefill, linear, &delta, hypic_tensor{}, hypic_tensor{}, nullptr, &scratch.exec)) ==
        "invalid_argument: flags has no meaning here");
  hypic_prefill_destroy(prefill);
}

TEST_CASE("Sequences that cannot be are refused by name, and nothing is written", "[adapter][c_api]") {
  model_of_c const model, other(7);
  record_of_c record(model, 30), foreign(other, 30);
  auto const refusal = [&](auto change) {
    std::vector<hypic_sequence> sequences{piece(10, 5, 0, &record), piece(10, 0, 1, nullptr)};
    sequences[1].first_row = 10;
    change(sequences);
    hypic_prefill* prefill = nullptr;
    auto const outcome = hypic_prefill_create(model.handle, sequences.data(),
                                              static_cast<std::int64_t>(sequences.size()), 20, 2, &prefill);
    CHECK((prefill == nullptr) == (outcome.code != HYPIC_OK));
    hypic_prefill_destroy(prefill);
    return words(outcome);
  };
  CHECK(refusal([](auto&) {}) == "ok");
  CHECK(refusal([](auto& s) { s[0].initial_slot = -1; }) ==
        "invalid_argument: sequences.initial_slot is -1, expected at least 0");
  CHECK(refusal([](auto& s) { s[0].position = 21; }) ==
        "invalid_shape: sequences: position + rows is 31, expected at most 30");
  CHECK(refusal([](auto& s) { s[0].block = nullptr; }) == "invalid_argument: sequences.block has no meaning here");
  CHECK(refusal([&](auto& s) { s[0].record = foreign.handle; }).starts_with("invalid_shape: record: made for other"));
  CHECK(refusal([](auto& s) { s[1].first_row = 9; }).starts_with("invalid_shape: sequences: two that share a row"));
  CHECK(refusal([](auto& s) { s[1].first_row = 11; }).starts_with("invalid_shape: sequences.first_row is 11"));
  CHECK(refusal([](auto& s) { s[1].final_slot = 2; }).starts_with("out_of_range"));
  CHECK(refusal([](auto& s) { s[1].final_slot = 0; }).starts_with("out_of_range"));
  CHECK(refusal([](auto& s) {
          s[1].record = s[0].record;
          s[1].block = s[0].block;
        }).starts_with("invalid_argument: sequences.block: two that are one"));

  // Segments in one call know whose record they are given, too.
  segment_rows rows(30, 5);
  lent scratch(1 << 20);
  auto const delta = rows.delta();
  CHECK(hypic_segment_linear(model.handle, linear, &delta, hypic_tensor{}, foreign.handle, foreign.block.data(),
                             &scratch.exec)
            .code == HYPIC_INVALID_SHAPE);

  auto const untouched = [](record_of_c const& of) {
    return std::ranges::count(of.block, '\xff') == std::ssize(of.block);
  };
  hypic_sequence sequences[] = {piece(10, 5, 0, &record), piece(10, 5, 1, nullptr)};
  sequences[1].first_row = 10;
  hypic_prefill* prefill = nullptr;
  REQUIRE(words(hypic_prefill_create(model.handle, sequences, 2, 20, 2, &prefill)) == "ok");
  values o({20, query_heads, value_dim}, 7.0f), few({19, query_heads, value_dim}, 7.0f);
  auto const attend = [&](hypic_tensor out, hypic_exec const& exec) {
    return words(hypic_prefill_attention(prefill, attention, rows.q.in_c(0, 20), rows.k.in_c(0, 20), rows.v.in_c(0, 20),
                                         out, &exec));
  };
  CHECK(attend(o.in_c(), scratch.exec) == "invalid_argument: sequences.position is 5, expected equal to 0");
  CHECK(attend(few.in_c(), scratch.exec).starts_with("invalid_shape: o.extent[0] is 19"));
  CHECK(attend(o.in_c(), lent(8).exec).starts_with("workspace_too_small"));
  std::uint32_t flags[2] = {};
  auto const some = rows.delta(0, 20);
  values states({2, 2, 5, 6}, 7.0f);
  CHECK(words(hypic_prefill_linear(prefill, linear, &some, hypic_tensor{}, hypic_tensor{}, flags, &scratch.exec))
            .starts_with("invalid_shape: states"));
  CHECK(words(hypic_prefill_linear(prefill, linear, &some, hypic_tensor{}, states.in_c(), flags, lent(8).get()))
            .starts_with("workspace_too_small"));
  CHECK(words(hypic_prefill_linear(prefill, attention, &some, hypic_tensor{}, states.in_c(), flags, &scratch.exec)) ==
        "invalid_argument: layer: it is not a linear layer has no meaning here");
  CHECK(std::ranges::count(states.data, 7.0f) == std::ssize(states.data));
  CHECK(std::ranges::count(o.data, 7.0f) == std::ssize(o.data));
  CHECK((untouched(record) && untouched(foreign)));
  hypic_prefill_destroy(prefill);
}

TEST_CASE("Cached keys turn into place, record by record, and values are copied", "[adapter][c_api][rotation]") {
  model_of_c const model;
  std::mt19937 random(6);
  std::int64_t const rows[] = {5, 3}, positions[] = {1000000, -17};
  std::vector<values> keys, stored, keys_out, stored_out;
  std::vector<hypic_moved_keys> moves(2);
  for (std::size_t i = 0; i < 2; ++i) {
    keys.emplace_back(std::vector<std::int64_t>{rows[i], kv_heads, key_dim}, random);
    stored.emplace_back(std::vector<std::int64_t>{rows[i], kv_heads, value_dim}, random);
    keys_out.emplace_back(keys[i].extent, 0.0f);
    stored_out.emplace_back(stored[i].extent, 0.0f);
  }
  for (std::size_t i = 0; i < 2; ++i)
    moves[i] = {sizeof(hypic_moved_keys), positions[i],       keys[i].in_c(),
                stored[i].in_c(),         keys_out[i].in_c(), stored_out[i].in_c()};
  auto const before = keys;
  lent const scratch(0);
  auto const outcome = [&](std::int32_t layer) {
    return words(hypic_rebase_keys(model.handle, layer, moves.data(), 2, &scratch.exec));
  };

  // Refused whole: the first of them is not made either.
  moves[1].keys_out = keys_out[0].in_c(0, 3);
  CHECK(outcome(attention).starts_with("invalid_shape: moves: two outputs that are one"));
  moves[1].keys_out = keys[0].in_c(0, 3);
  CHECK(outcome(attention).starts_with("invalid_shape: moves: an output that is another's input"));
  moves[1].keys_out = keys[1].in_c();
  CHECK(outcome(attention).starts_with("invalid_shape: moves.keys_out overlaps an input"));
  moves[1].keys_out = keys_out[1].in_c(0, 2);
  CHECK(outcome(attention).starts_with("invalid_shape: moves.keys_out.extent[0] is 2, expected equal to 3"));
  moves[1].keys_out = keys_out[1].in_c();
  CHECK(outcome(linear) == "invalid_argument: layer: it is of another kind has no meaning here");
  for (auto const& one : keys_out) CHECK(std::ranges::count(one.data, 0.0f) == std::ssize(one.data));

  REQUIRE(outcome(attention) == "ok");
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<double> wanted(keys[i].data.begin(), keys[i].data.end());
    for (std::size_t at = 0; at < wanted.size(); at += key_dim) turn(wanted, at, 1, static_cast<double>(positions[i]));
    CHECK(relative(keys_out[i].data, wanted) < 1e-6);
    CHECK(stored_out[i] == stored[i]);
    CHECK(keys[i] == before[i]);
  }
  CHECK(words(hypic_rebase_keys(model.handle, attention, nullptr, 0, &scratch.exec)) == "ok");
}

TEST_CASE("Cached end states turn on their key axis, in place as well", "[adapter][c_api][rotation]") {
  model_of_c const model;
  std::mt19937 random(7);
  values first({2, 4, 3}, random), second({2, 4, 3}, random), out({2, 4, 3}, 0.0f);
  std::vector<double> wanted_first(first.data.begin(), first.data.end());
  std::vector<double> wanted_second(second.data.begin(), second.data.end());
  auto const kept = first;
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t c = 0; c < 3; ++c) {
      turn(wanted_first, 12 * h + c, 3, 333333.0);
      turn(wanted_second, 12 * h + c, 3, -4.0);
    }
  hypic_moved_states moves[] = {{sizeof(hypic_moved_states), 333333, first.in_c(), out.in_c()},
                                {sizeof(hypic_moved_states), -4, second.in_c(), second.in_c()}};
  lent const scratch(0);
  REQUIRE(words(hypic_rebase(model.handle, rotary, moves, 2, &scratch.exec)) == "ok");
  CHECK(relative(out.data, wanted_first) < 1e-6);
  CHECK(relative(second.data, wanted_second) < 1e-6);
  CHECK(first == kept);

  CHECK(words(hypic_rebase(model.handle, attention, moves, 2, &scratch.exec)) ==
        "invalid_argument: layer: it is of another kind has no meaning here");
  moves[1].out = first.in_c();
  CHECK(words(hypic_rebase(model.handle, rotary, moves, 2, &scratch.exec))
            .starts_with("invalid_shape: moves: an output that is another's input"));
  CHECK(first == kept);
}
