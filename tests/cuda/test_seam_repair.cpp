// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/seam_repair.hpp"

#include <catch2/catch.hpp>

#include <vector>

#include "cuda/device.hpp"
#include "hypic/cuda/angles.hpp"
#include "segment/repair_run.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

/// A host's repair_run on the device: what it reads, uploaded packed, and what it writes.
class device_run {
 public:
  explicit device_run(repair_run& of) : run_(of) {
    auto const& plan = of.plan;
    plan_ = plan_device_repair(plan.family, plan.dims, plan.options, dtype::f32, plan.total_rows, plan.slots,
                               static_cast<std::int64_t>(plan.chains.size()));
    auto const inputs = of.in.view();
    tables_.inputs = upload(inputs.rows);
    tables_.inputs.q = upload(gather(inputs.q));
    o_ = device_array<float>(to_index(of.o.view().size()));
    states_ = device_array<float>(gather(of.states.view()));
    flags_ = device_array<std::uint32_t>(std::vector<std::uint32_t>(plan.chains.size() + 1));
    spans_ = device_array<seam_span>(with_room(plan.spans));
    chains_ = device_array<seam_chain>(with_room(plan.chains));
    std::vector<device_cached_span> records;
    for (auto const& record : of.records) records.push_back(upload(record));
    records_ = device_array<device_cached_span>(with_room(records));
    tables_.o = o_.data();
    tables_.states = states_.data();
    tables_.spans = spans_.data();
    tables_.chains = chains_.data();
    tables_.records = records_.data();
    tables_.flags = flags_.data();
  }

  device_repair_plan& plan() { return plan_; }
  repair_tables& tables() { return tables_; }
  device_array<seam_chain> const& chains() const { return chains_; }
  device_array<float> const& states() const { return states_; }

  status queue(test_stream const& stream) const { return seam_repair(plan_, tables_, {.stream = stream.get()}); }
  /// Runs the call, and puts what it wrote where the host's call would have.
  void go() {
    test_stream const stream;
    REQUIRE(queue(stream) == status::ok);
    stream.wait();
    collect();
  }
  void collect() {
    auto const o = o_.get();
    auto const states = states_.get();
    for_each_element(run_.o.view(), [&](float& x, std::int64_t i) { x = o[to_index(i)]; });
    for_each_element(run_.states.view(), [&](float& x, std::int64_t i) { x = states[to_index(i)]; });
    auto const flags = flags_.get();
    for (std::size_t c = 0; c < run_.flags.size(); ++c) run_.flags[c] = flags[c];
  }

 private:
  /// A table that has memory also where it has no entries.
  template <class T>
  static std::vector<T> with_room(std::vector<T> table) {
    table.emplace_back();
    return table;
  }
  float const* upload(std::vector<float> const& packed) {
    memory_.emplace_back(with_room(packed));
    return memory_.back().data();
  }
  device_rows upload(const_rows_view rows) {
    device_rows out{.k = upload(gather(rows.k)), .v = upload(gather(rows.v)), .gates = upload(gather(rows.gates))};
    if (!rows.beta.empty()) out.beta = upload(gather(rows.beta));
    return out;
  }
  device_cached_span upload(cached_span const& record) {
    device_cached_span out{.head = upload(record.head)};
    if (!record.body.empty())
      out.body = {upload(gather(record.body.operators)), nullptr, upload(gather(record.body.end_states))};
    if (record.turn == nullptr || record.turn->identity()) return out;
    plan_.rotary_pairs = static_cast<std::int32_t>(record.turn->cosine.size());
    plan_.pairing = record.turn->pairing;
    std::vector<float> angles(2 * record.turn->cosine.size());
    REQUIRE(write_angles(*record.turn, angles) == status::ok);
    out.turn = upload(angles);
    return out;
  }

  repair_run& run_;
  device_repair_plan plan_;
  repair_tables tables_;
  std::vector<device_array<float>> memory_;
  device_array<float> o_, states_;
  device_array<std::uint32_t> flags_;
  device_array<seam_span> spans_;
  device_array<seam_chain> chains_;
  device_array<device_cached_span> records_;
};

}  // namespace

TEST_CASE("On a device a chain equals the sequential recurrence over the same rows, for every mix of spans",
          "[cuda][seam_repair]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::uint64_t seed = 1;
  for (std::int32_t const head_rows : {8, 16}) {
    for (auto const& dims : {state_dims{1, 2, 16, 24}, state_dims{2, 2, 64, 32}, state_dims{1, 3, 5, 3},
                             state_dims{1, 4, 128, 128}, state_dims{1, 1, 200, 40}}) {
      for (auto const gates : {gate_kind::slow, gate_kind::mixed, gate_kind::resets, gate_kind::steep}) {
        for (bool const normalize : {false, true}) {
          setting const of{.family = family,
                           .dims = dims,
                           .head_rows = head_rows,
                           .gates = gates,
                           .keys = key_kind::correlated,
                           .options = {.q_scale = 0.25f, .l2_normalize = normalize}};
          std::vector<chain_data> chains;
          chains.push_back(random_chain(of, 8, seed++));
          chains.push_back(random_chain(of, 1, seed++));
          chains.push_back(random_chain(of, 5, seed++, true));
          repair_run run(of, chains);
          device_run(run).go();
          INFO("W " << head_rows << ", dims " << dims.key_dim << "x" << dims.value_dim << ", gates " << name(gates)
                    << ", normalized " << normalize << ", seeds up to " << seed - 1);
          run.check();
        }
      }
    }
  }
}

TEST_CASE("On a device every seam of 0 to W tokens is exact from one record", "[cuda][seam_repair]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .head_rows = 8, .gates = gate_kind::slow};
  for (std::int64_t seam = 0; seam <= of.head_rows; ++seam) {
    std::vector<chain_data> chains;
    for (std::int64_t tokens = 0; tokens <= of.head_rows + 4; ++tokens) {
      chain_data chain;
      chain.spans.push_back(cached_data(of, 20, 0, 0, 1));
      chain.spans.push_back(cached_data(of, tokens, seam, 20, 2));
      chain.spans.push_back(fresh_data(of, 3, 20 + tokens, 3));
      chains.push_back(std::move(chain));
    }
    repair_run run(of, chains);
    device_run(run).go();
    CAPTURE(seam);
    run.check();
  }
}

TEST_CASE("On a device gates may be in every space", "[cuda][seam_repair][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  for (auto const space : {gate_space::natural_log, gate_space::log2, gate_space::linear}) {
    setting const of{.family = family, .gates = gate_kind::resets, .options = {.gates = space}};
    std::vector<chain_data> chains;
    chains.push_back(random_chain(of, 8, 210));
    repair_run run(of, chains);
    device_run(run).go();
    CAPTURE(name(family), static_cast<int>(space));
    run.check();
  }
}

TEST_CASE("On a device cached head rows and end states turn to their start", "[cuda][seam_repair]") {
  std::uint64_t seed = 300;
  for (auto const pairing : {rotary_pairing::rotate_half, rotary_pairing::interleaved}) {
    for (std::int64_t const rotary_dim : {16, 8, 2}) {
      setting const of{.family = family_id::retnet,
                       .gates = gate_kind::slow,
                       .frequencies = frequencies_of(rotary_dim),
                       .pairing = pairing};
      std::vector<chain_data> chains;
      chains.push_back(random_chain(of, 8, seed++));
      chains.push_back(random_chain(of, 4, seed++, true));
      repair_run run(of, chains);
      device_run(run).go();
      CAPTURE(rotary_dim, static_cast<int>(pairing));
      run.check();
    }
  }
}

TEST_CASE("On a device a chain gives the same bits alone, in any batch and on every run",
          "[cuda][seam_repair][case-08][case-15]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .dims = {1, 2, 64, 64}, .gates = gate_kind::slow};
  std::vector<chain_data> alone;
  alone.push_back(random_chain(of, 6, 400, true));
  repair_run one(of, alone);
  device_run(one).go();
  auto const wanted = one.all_of(0);
  for (int i = 0; i < 20; ++i) {
    repair_run again(of, alone);
    device_run(again).go();
    REQUIRE(same_bits(again.all_of(0), wanted));
  }
  for (std::size_t const batch : {2u, 7u, 64u}) {
    std::vector<chain_data> many;
    many.push_back(random_chain(of, 6, 400, true));
    for (std::size_t i = 1; i < batch; ++i) many.push_back(random_chain(of, static_cast<std::int64_t>(i % 4), 400 + i));
    repair_run run(of, many);
    device_run(run).go();
    CAPTURE(batch);
    CHECK(same_bits(run.all_of(0), wanted));
  }
}

TEST_CASE("On a device a repair is one kernel when captured, and serves what its tables hold when replayed",
          "[cuda][seam_repair]") {
  setting const of{.family = family_id::gated_deltanet, .dims = {1, 2, 64, 64}, .gates = gate_kind::slow};
  std::vector<chain_data> chains;
  chains.push_back(random_chain(of, 6, 500, true));
  repair_run run(of, chains);
  device_run device(run);
  test_stream const stream;
  captured_graph const graph(stream, [&] { REQUIRE(device.queue(stream) == status::ok); });
  CHECK(graph.kernels() == 1);
  CHECK(graph.nodes() == 1);
  graph.replay();
  device.collect();
  run.check();
  // The same chain without its last spans: the final state is that of the sequential run over the first two.
  auto shorter = run.plan.chains;
  shorter[0].spans = 2;
  shorter.emplace_back();
  device.chains().set(shorter);
  graph.replay();
  device.collect();
  chains[0].spans.resize(2);
  auto const wanted = sequential(of, chains[0]);
  CHECK(state_error(run.states.view()[0], wanted.state) <= 1e-5);
}

TEST_CASE("On a device slots of -1 or outside of the pool, and spans outside of the rows, are not touched",
          "[cuda][seam_repair][case-14]") {
  setting const of{.family = family_id::gla, .gates = gate_kind::slow};
  std::vector<chain_data> chains;
  chains.push_back(random_chain(of, 3, 600));
  repair_run run(of, chains);
  device_run device(run);
  for (std::int32_t const slot : {-1, 2, 1 << 30}) {
    auto table = run.plan.chains;
    table[0].final_slot = slot;
    table.emplace_back();
    device.chains().set(table);
    device.states().poison();
    device.go();
    for (float const x : run.states.packed()) REQUIRE(std::isnan(x));
  }
}

TEST_CASE("On a device bad values in forwarded rows are flagged for their chain alone",
          "[cuda][seam_repair][case-06]") {
  setting const of{.family = family_id::kda, .gates = gate_kind::slow};
  auto const flagged = [&](auto damage) {
    std::vector<chain_data> chains(3);
    for (auto& chain : chains) chain.spans.push_back(fresh_data(of, 5, 0, 700));
    damage(chains[1].spans[0].fresh);
    repair_run run(of, chains);
    device_run(run).go();
    CHECK(run.flags[0] == 0u);
    CHECK(run.flags[2] == 0u);
    return run.flags[1];
  };
  CHECK(flagged([](layer_inputs& in) { in.rows.gates.view()(2, 1, 3) = 0.5f; }) == value_flag::gate_out_of_range);
  CHECK((flagged([](layer_inputs& in) { in.rows.k.view()(2, 0, 3) = quiet_nan; }) & value_flag::non_finite) != 0u);
  CHECK((flagged([](layer_inputs& in) { in.rows.v.view()(4, 1, 23) = infinity; }) & value_flag::non_finite) != 0u);
  CHECK((flagged([](layer_inputs& in) { in.q.view()(0, 0, 0) = infinity; }) & value_flag::non_finite) != 0u);
  CHECK(flagged([](layer_inputs& in) { in.rows.beta.view()(1, 0) = 2.5f; }) == value_flag::expansive_update);
}

TEST_CASE("A repair that the device cannot serve is refused before work is queued", "[cuda][seam_repair]") {
  auto const good = plan_device_repair(family_id::retnet, {1, 1, 16, 16}, {}, dtype::f32, 10, 0, 1);
  CHECK(validate(good) == status::ok);
  CHECK(seam_repair(good, {}, {stream_ref{nullptr}}) == status::invalid_argument);
  test_stream const stream;
  CHECK(seam_repair(good, {}, {stream.get()}) == status::invalid_argument);
  CHECK(validate(plan_device_repair(family_id::retnet, {1, 1, 257, 16}, {}, dtype::f32, 10, 0, 1)) ==
        status::unsupported);
  CHECK(validate(plan_device_repair(family_id::retnet, {1, 1, 16, 16}, {}, dtype::f32, -1, 0, 1)) ==
        status::invalid_shape);
  auto turned = plan_device_repair(family_id::kda, {1, 1, 16, 16}, {}, dtype::f32, 10, 0, 1);
  turned.rotary_pairs = 4;
  CHECK(validate(turned) == status::unsupported);
  auto wide = good;
  wide.rotary_pairs = 9;
  CHECK(validate(wide) == status::invalid_shape);
}
