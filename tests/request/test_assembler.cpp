// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hypic/request/assembler.hpp"

using namespace hypic;

namespace {

constexpr std::int32_t delta = 0;
constexpr std::int32_t attending = 1;
constexpr std::int32_t retention = 2;

rotary_embedding rotary() { return {{1.0, 0.1, 0.01, 0.001}, rotary_pairing::rotate_half}; }

/// A Gated DeltaNet layer with a convolution, an attention layer, a RetNet layer.
model_layout small_layout(std::int32_t tail_groups = 1) {
  model_layout layout;
  linear_layer first;
  first.family = family_id::gated_deltanet;
  first.dims = {1, 2, 8, 8};
  first.options.l2_normalize = true;
  first.tail_rows = 3;
  first.tail_channels = 6;
  first.tail_groups = tail_groups;
  layout.layers.emplace_back(first);
  layout.layers.emplace_back(
      attention_layer{.query_heads = 2, .kv_heads = 1, .key_dim = 8, .value_dim = 8, .rotary = rotary()});
  linear_layer last;
  last.family = family_id::retnet;
  last.dims = {1, 1, 8, 8};
  last.rotary = rotary();
  layout.layers.emplace_back(last);
  layout.head_rows = 8;
  return layout;
}

class numbers {
 public:
  explicit numbers(unsigned seed) : random_(seed) {}
  std::vector<float> normal(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (auto& v : values) v = distribution_(random_);
    return values;
  }
  template <int Rank>
  void fill(tensor_view<float, Rank> view, float (*law)(float)) {
    if constexpr (Rank == 1) {
      for (std::int64_t i = 0; i < view.extent[0]; ++i) view(i) = law(distribution_(random_));
    } else {
      for (std::int64_t i = 0; i < view.extent[0]; ++i) fill(view[i], law);
    }
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> distribution_;
};

float as_is(float x) { return x; }
float log_gate(float x) { return -0.1f * std::abs(x); }
float strength(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float small(float x) { return 0.1f * x; }

struct record_data {
  record_layout layout;
  std::vector<float> block;
  record_view view() const { return {&layout, reinterpret_cast<std::byte const*>(block.data())}; }
};

record_data random_record(model_layout const& model, std::int64_t tokens, unsigned seed) {
  record_data made{*record_layout::make(model, tokens), {}};
  made.block.resize(static_cast<std::size_t>(made.layout.bytes()) / sizeof(float));
  auto* const block = reinterpret_cast<std::byte*>(made.block.data());
  numbers random(seed);
  for (auto const layer : {delta, retention}) {
    auto const head = made.layout.head(layer, block);
    random.fill(head.k, as_is);
    random.fill(head.v, as_is);
    random.fill(head.gates, log_gate);
    if (layer == delta) random.fill(head.beta, strength);
    auto const body = made.layout.body(layer, block);
    random.fill(body.operators, layer == delta ? small : log_gate);
    random.fill(body.end_states, as_is);
  }
  random.fill(made.layout.tail(delta, block), as_is);
  random.fill(made.layout.keys(attending, block), as_is);
  random.fill(made.layout.values(attending, block), as_is);
  return made;
}

record_key key_of(unsigned char name) {
  record_key key;
  key.bytes[0] = std::byte{name};
  return key;
}

prompt_span span_of(span_kind kind, std::int64_t tokens, unsigned char name = 0) {
  return {kind, std::vector<std::int32_t>(static_cast<std::size_t>(tokens)), key_of(name)};
}

/// A prompt of two records with fresh spans between them, and a short segment.
struct small_case {
  std::int32_t tail_groups = 1;
  model_layout model = small_layout(tail_groups);
  std::vector<record_data> records{random_record(model, 20, 1), random_record(model, 12, 2)};
  std::vector<prompt_span> spans{span_of(span_kind::cached, 20, 1), span_of(span_kind::fresh, 3),
                                 span_of(span_kind::cached, 12, 2), span_of(span_kind::cached, 2, 3),
                                 span_of(span_kind::cached, 20, 1), span_of(span_kind::fresh, 4)};
  request_plan plan = *plan_request(model, spans, {.seam_rows = 4});

  std::vector<record_view> views_of(batch_plan const& batch) const {
    std::vector<record_view> views;
    for (auto const& key : batch.records) views.push_back(records[key == key_of(1) ? 0 : 1].view());
    return views;
  }
};

batch_plan batch_of(request_plan plan, std::int32_t initial_slot, std::int32_t final_slot) {
  return *plan_batch({{std::move(plan), initial_slot, final_slot}});
}

/// All that three layers read and write, for every forwarded row of the whole plan.
struct layer_run {
  static constexpr std::int64_t raw_channels = 6;
  std::int64_t rows;
  std::int64_t positions;
  std::vector<float> raw, q, k, v, gates, beta, keys, values;
  std::vector<float> tails, delta_o, delta_states, tail_pool, retention_o, retention_states, attention_o;

  explicit layer_run(request_plan const& plan) : rows(plan.rows()), positions(plan.prompt_tokens) {
    numbers random(5);
    raw = random.normal(rows * raw_channels);
    q = random.normal(rows * 16);
    k = random.normal(rows * 8);
    v = random.normal(rows * 16);
    gates = random.normal(rows * 2);
    beta = random.normal(rows * 2);
    for (auto& g : gates) g = log_gate(g);
    for (auto& b : beta) b = strength(b);
    auto const zeros = [](std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); };
    keys = values = zeros(positions * 8);
    delta_o = attention_o = zeros(rows * 16);
    retention_o = zeros(rows * 8);
    delta_states = zeros(2 * 64);
    retention_states = zeros(64);
    tail_pool = zeros(3 * raw_channels);
  }

  /// Runs rows [first, first + the batch's) through the three layers.
  void run(assembler const& with, std::int64_t first, int threads) {
    auto const count = with.plan().rows();
    std::vector<std::byte> workspace(static_cast<std::size_t>(with.workspace_bytes(threads)));
    host_exec const ex{.workspace = workspace, .threads = threads};
    auto const part = [&](std::vector<float>& data, std::int64_t heads, std::int64_t dim) {
      return dense_view(data.data(), rows, heads, dim).rows(first, count);
    };
    auto const spans = static_cast<std::int64_t>(with.plan().runs.size());
    tails.assign(static_cast<std::size_t>(spans * 3 * raw_channels), std::nanf(""));
    REQUIRE(with.tails(delta, dense_view(raw.data(), rows, raw_channels).rows(first, count),
                       dense_view(tail_pool.data(), 1, 3, raw_channels),
                       dense_view(tails.data(), spans, 3, raw_channels), ex) == status::ok);
    query_rows_view in;
    in.q = part(k, 1, 8);
    in.rows = {part(k, 1, 8), part(v, 2, 8), part(gates, 2, 1), dense_view(beta.data(), rows, 2).rows(first, count)};
    REQUIRE(with.linear(delta, in, {part(delta_o, 2, 8), dense_view(delta_states.data(), 1, 2, 8, 8), {}}, ex) ==
            status::ok);
    in.rows = {part(k, 1, 8), dense_view(v.data(), rows, 2, 8).rows(first, count), part(gates, 2, 1), {}};
    in.rows.v.extent[1] = in.rows.gates.extent[1] = 1;
    REQUIRE(with.linear(retention, in, {part(retention_o, 1, 8), dense_view(retention_states.data(), 1, 1, 8, 8), {}},
                        ex) == status::ok);
    request_cache const cache{dense_view(keys.data(), positions, 1, 8), dense_view(values.data(), positions, 1, 8)};
    REQUIRE(with.attention(attending, part(q, 2, 8), part(k, 1, 8), part(k, 1, 8), {&cache, 1}, part(attention_o, 2, 8),
                           ex) == status::ok);
  }
};

bool same_bits(std::vector<float> const& left, std::vector<float> const& right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

/// Nothing of a call that is refused may have been written, the caches least of all.
void check_refused_attention(assembler const& with, request_plan const& plan) {
  auto const rows = plan.rows();
  auto const positions = plan.prompt_tokens;
  std::vector<float> q(static_cast<std::size_t>(rows * 16)), k(static_cast<std::size_t>(rows * 8)), o(q);
  std::vector<float> keys(static_cast<std::size_t>(positions * 8)), values(keys);
  std::vector<std::byte> workspace(static_cast<std::size_t>(with.workspace_bytes(1)));
  request_cache const cache{dense_view(keys.data(), positions, 1, 8), dense_view(values.data(), positions, 1, 8)};
  auto const fresh = dense_view(std::as_const(k).data(), rows, 1, 8);
  auto const refused = [&](tensor_view<float const, 3> queries, tensor_view<float, 3> out, int threads) {
    auto const outcome = with.attention(attending, queries, fresh, fresh, {&cache, 1}, out,
                                        {.workspace = workspace, .threads = threads});
    CHECK(std::all_of(keys.begin(), keys.end(), [](float x) { return x == 0.0f; }));
    return message(outcome);
  };
  auto const queries = dense_view(std::as_const(q).data(), rows, 2, 8);
  auto const out = dense_view(o.data(), rows, 2, 8);
  CHECK(refused(queries.rows(0, rows - 1), out, 1).starts_with("invalid_shape: q.extent[0] is "));
  CHECK(refused(queries, out.rows(0, rows - 1), 1).starts_with("invalid_shape: o.extent[0] is "));
  CHECK(refused(queries, dense_view(q.data(), rows, 2, 8), 1).starts_with("invalid_shape: o overlaps an input"));
  CHECK(refused(queries, out, 0) == "invalid_argument: ex.threads is 0, expected at least 1");
}

void check_same(layer_run const& found, layer_run const& expected) {
  CHECK(same_bits(found.delta_o, expected.delta_o));
  CHECK(same_bits(found.delta_states, expected.delta_states));
  CHECK(same_bits(found.tail_pool, expected.tail_pool));
  CHECK(same_bits(found.retention_o, expected.retention_o));
  CHECK(same_bits(found.retention_states, expected.retention_states));
  CHECK(same_bits(found.attention_o, expected.attention_o));
  CHECK(same_bits(found.keys, expected.keys));
  CHECK(same_bits(found.values, expected.values));
}

layer_run run_whole(small_case const& of, int threads) {
  auto batch = batch_of(of.plan, -1, 0);
  auto const views = of.views_of(batch);
  auto const whole = assembler::make(of.model, std::move(batch), views, 1);
  REQUIRE(whole);
  layer_run run(of.plan);
  run.run(*whole, 0, threads);
  return run;
}

}  // namespace

TEST_CASE("Assembling a prompt in two ranges of spans, wherever it is cut, gives the bits of one") {
  small_case const of;
  auto const expected = run_whole(of, 1);
  auto const spans = static_cast<std::int64_t>(of.plan.spans.size());
  for (std::int64_t cut = 0; cut <= spans; ++cut) {
    CAPTURE(cut);
    layer_run found(of.plan);
    std::int64_t first = 0;
    for (auto const& [from, count] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, spans - cut}}) {
      if (count == 0) continue;
      auto batch = batch_of(*slice(of.plan, from, count), from > 0 ? 0 : -1, 0);
      auto const views = of.views_of(batch);
      auto const part = assembler::make(of.model, std::move(batch), views, 1);
      REQUIRE(part);
      found.run(*part, first, 1);
      first += part->plan().rows();
    }
    check_same(found, expected);
  }
}

TEST_CASE("Assembly gives the same bits on one thread and on two") {
  small_case const of;
  check_same(run_whole(of, 2), run_whole(of, 1));
}

TEST_CASE("However a tail is cut into groups, assembly gives the same bits") {
  auto const expected = run_whole({}, 1);
  for (std::int32_t const groups : {2, 3, 6}) {
    auto const found = run_whole({groups}, 1);
    CHECK(same_bits(found.tails, expected.tails));
    check_same(found, expected);
  }
}

TEST_CASE("A moved assembler works as before") {
  small_case const of;
  auto batch = batch_of(of.plan, -1, 0);
  auto const views = of.views_of(batch);
  auto made = assembler::make(of.model, std::move(batch), views, 1);
  REQUIRE(made);
  assembler const moved = std::move(made).value();
  layer_run found(of.plan);
  found.run(moved, 0, 1);
  check_same(found, run_whole(of, 1));
}

TEST_CASE("An assembler refuses records that are not those of its plan") {
  small_case const of;
  auto const batch = batch_of(of.plan, -1, 0);
  auto const views = of.views_of(batch);
  auto const refusal = [&](std::vector<record_view> const& records) {
    auto const made = assembler::make(of.model, batch, records, 1);
    REQUIRE_FALSE(made);
    return made.error();
  };
  auto const missing = refusal({views[0]});
  CHECK(missing == status::invalid_shape);
  CHECK((missing.found() == 1 && missing.expected() == 2));
  CHECK(refusal({views[0], {}}) == status::invalid_argument);
  CHECK(refusal({views[0], {views[1].layout, nullptr}}) == status::invalid_argument);
  auto const length = refusal({views[1], views[0]});
  CHECK(length == status::invalid_shape);
  CHECK((length.found() == 12 && length.expected() == 20));

  auto other = of.model;
  other.head_rows = 4;
  auto const foreign = random_record(other, 12, 2);
  CHECK(refusal({views[0], foreign.view()}) == status::invalid_shape);
}

TEST_CASE("An assembler refuses slots outside of the host's pools") {
  small_case const of;
  auto const batch = batch_of(of.plan, -1, 3);
  CHECK(assembler::make(of.model, batch, of.views_of(batch), 3).error() == status::out_of_range);
  CHECK(assembler::make(of.model, batch, of.views_of(batch), 4));
}

TEST_CASE("A layer's call refuses another kind of layer, wrong shapes and too little scratch, and names them") {
  small_case const of;
  auto batch = batch_of(of.plan, -1, 0);
  auto const views = of.views_of(batch);
  auto const made = assembler::make(of.model, std::move(batch), views, 1);
  REQUIRE(made);
  auto const& with = *made;
  layer_run data(of.plan);
  auto const rows = data.rows;
  auto const raw = dense_view(data.raw.data(), rows, layer_run::raw_channels);
  auto const pool = dense_view(data.tail_pool.data(), 1, 3, layer_run::raw_channels);
  std::vector<float> room(6 * 3 * layer_run::raw_channels);
  auto const tails = dense_view(room.data(), 6, 3, layer_run::raw_channels);
  CHECK(with.tails(attending, raw, pool, tails, {}) == status::invalid_argument);
  CHECK(with.tails(retention, raw, pool, tails, {}) == status::invalid_argument);
  CHECK(with.tails(3, raw, pool, tails, {}) == status::out_of_range);
  CHECK(with.tails(-1, raw, pool, tails, {}) == status::out_of_range);
  CHECK(with.tails(delta, raw.rows(0, rows - 1), pool, tails, {}) == status::invalid_shape);
  CHECK(with.tails(delta, raw, pool, tails.rows(0, 5), {}) == status::invalid_shape);
  CHECK(with.tails(delta, raw, pool.rows(0, 0), tails, {}) == status::invalid_shape);
  CHECK(with.linear(attending, {}, {}, {}) == status::invalid_argument);
  CHECK(with.linear(delta, {}, {}, {}) == status::invalid_shape);

  auto const q = dense_view(data.q.data(), rows, 2, 8);
  auto const k = dense_view(data.k.data(), rows, 1, 8);
  auto const o = dense_view(data.attention_o.data(), rows, 2, 8);
  request_cache const cache{dense_view(data.keys.data(), data.positions, 1, 8),
                            dense_view(data.values.data(), data.positions, 1, 8)};
  request_cache const shorter{cache.keys.rows(0, data.positions - 1), cache.values};
  CHECK(with.attention(delta, q, k, k, {&cache, 1}, o, {}) == status::invalid_argument);
  CHECK(with.attention(attending, q, k.rows(0, 1), k, {&cache, 1}, o, {}) == status::invalid_shape);
  CHECK(with.attention(attending, q, k, k, {}, o, {}) == status::invalid_shape);
  CHECK(with.attention(attending, q, k, k, {&shorter, 1}, o, {}) == status::invalid_shape);
  CHECK(with.attention(attending, q, k, k, {&cache, 1}, o, {}) == status::workspace_too_small);
}

TEST_CASE("An attention call that is refused has written nothing") {
  small_case const of;
  auto const batch = batch_of(of.plan, -1, -1);
  auto const views = of.views_of(batch);
  auto const made = assembler::make(of.model, batch, views, 1);
  REQUIRE(made);
  check_refused_attention(*made, of.plan);
}
