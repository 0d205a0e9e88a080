// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/seam_repair.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <vector>

#include "hypic/algebra/rotation.hpp"
#include "segment/repair_run.hpp"
#include "support/sparse_memory.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

TEST_CASE("A chain equals the sequential recurrence over the same rows, for every mix of spans", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::uint64_t seed = 1;
  for (std::int32_t const head_rows : {8, 16}) {
    for (auto const& dims : {state_dims{1, 2, 16, 24}, state_dims{2, 2, 64, 32}, state_dims{1, 3, 5, 3}}) {
      for (auto const gates : {gate_kind::slow, gate_kind::mixed, gate_kind::resets, gate_kind::steep}) {
        for (auto const keys : {key_kind::random, key_kind::correlated}) {
          setting const of{.family = family,
                           .dims = dims,
                           .head_rows = head_rows,
                           .gates = gates,
                           .keys = keys,
                           .options = {.q_scale = 0.25f}};
          std::vector<chain_data> chains;
          chains.push_back(random_chain(of, 8, seed++));
          chains.push_back(random_chain(of, 1, seed++));
          chains.push_back(random_chain(of, 5, seed++, true));
          repair_run run(of, chains);
          REQUIRE(run.go(2) == status::ok);
          INFO("W " << head_rows << ", dims " << dims.key_dim << "x" << dims.value_dim << ", gates " << name(gates)
                    << ", keys " << name(keys) << ", seeds up to " << seed - 1);
          run.check();
        }
      }
    }
  }
}

TEST_CASE("Every seam of 0 to W tokens is exact from one record, for segments of every length around W", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (std::int32_t const head_rows : {8, 16}) {
    setting const of{.family = family, .head_rows = head_rows, .gates = gate_kind::slow};
    for (std::int64_t seam = 0; seam <= head_rows; ++seam) {
      std::vector<chain_data> chains;
      for (std::int64_t tokens = 0; tokens <= head_rows + 4; ++tokens) {
        chain_data chain;
        chain.spans.push_back(cached_data(of, 20, 0, 0, 1));
        chain.spans.push_back(cached_data(of, tokens, seam, 20, 2));
        chain.spans.push_back(fresh_data(of, 3, 20 + tokens, 3));
        chains.push_back(std::move(chain));
      }
      repair_run run(of, chains);
      REQUIRE(run.go() == status::ok);
      CAPTURE(head_rows, seam);
      run.check();
    }
  }
}

TEST_CASE("Records that segment_prefill made give the sequential recurrence too", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const& dims : {state_dims{1, 2, 16, 24}, state_dims{1, 1, 64, 64}, state_dims{1, 1, 128, 128}}) {
    for (auto const gates : {gate_kind::slow, gate_kind::resets}) {
      for (bool const normalize : {false, true}) {
        setting const of{.family = family,
                         .dims = dims,
                         .gates = gates,
                         .keys = key_kind::correlated,
                         .options = {.l2_normalize = normalize},
                         .prefilled = true};
        std::vector<chain_data> chains;
        for (std::uint64_t seed = 200; seed < 203; ++seed) chains.push_back(random_chain(of, 6, seed));
        repair_run run(of, chains);
        REQUIRE(run.go(2) == status::ok);
        CAPTURE(dims.key_dim, name(gates), normalize);
        run.check();
      }
    }
  }
}

TEST_CASE("Gates in every space go through a repair", "[segment][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const space : {gate_space::natural_log, gate_space::log2, gate_space::linear}) {
    setting const of{.family = family, .gates = gate_kind::resets, .options = {.gates = space}};
    std::vector<chain_data> chains;
    chains.push_back(random_chain(of, 8, 210));
    repair_run run(of, chains);
    REQUIRE(run.go() == status::ok);
    run.check();
  }
}

TEST_CASE("Under a rotary embedding cached head rows and end states turn to their start", "[segment]") {
  std::uint64_t seed = 300;
  for (auto const pairing : {rotary_pairing::rotate_half, rotary_pairing::interleaved}) {
    for (std::int64_t const rotary_dim : {16, 8, 2}) {
      for (auto const gates : {gate_kind::slow, gate_kind::mixed}) {
        for (std::int32_t const head_rows : {8, 16}) {
          setting const of{.family = family_id::retnet,
                           .head_rows = head_rows,
                           .gates = gates,
                           .frequencies = frequencies_of(rotary_dim),
                           .pairing = pairing,
                           .prefilled = gates == gate_kind::slow};
          std::vector<chain_data> chains;
          chains.push_back(random_chain(of, 8, seed++));
          chains.push_back(random_chain(of, 4, seed++, true));
          repair_run run(of, chains);
          REQUIRE(run.go() == status::ok);
          INFO("rotary " << rotary_dim << ", W " << head_rows << ", seeds up to " << seed - 1);
          run.check();
        }
      }
    }
  }
}

TEST_CASE("A turn under a diagonal or dense operator is refused", "[segment]") {
  auto const family = GENERATE(family_id::gla, family_id::gated_deltanet, family_id::kda);
  CAPTURE(name(family));
  setting const of{.family = family, .frequencies = frequencies_of(16)};
  std::vector<chain_data> chains(1);
  chains[0].spans.push_back(cached_data(of, 20, 4, 1000, 1));
  repair_run run(of, chains);
  CHECK(run.go() == status::unsupported);
  for (float const x : run.o.packed()) REQUIRE(std::isnan(x));
  for (float const x : run.states.packed()) REQUIRE(std::isnan(x));
}

TEST_CASE("Forwarding the rows that were cached changes nothing: a seam is counted once", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .gates = gate_kind::slow};
  auto const build = [&](std::int64_t seam) {
    std::vector<chain_data> chains(1);
    for (std::uint64_t i = 0; i < 4; ++i) {
      auto span = cached_data(of, 30, seam, 30 * static_cast<std::int64_t>(i), 320 + i);
      copy_rows(span.canonical.view(), 0, seam, span.fresh, 0);
      chains[0].spans.push_back(std::move(span));
    }
    return chains;
  };
  auto const plain = build(0);
  auto const wanted = sequential(of, plain[0]);
  for (std::int64_t const seam : {0, 1, 7, 8}) {
    auto const chains = build(seam);
    repair_run run(of, chains);
    REQUIRE(run.go() == status::ok);
    CAPTURE(seam);
    CHECK(state_error(std::as_const(run.states).view()[0], wanted.state) <= 1e-5);
  }
}

// Slow decay: with a fast one, leaks between chains hide.
TEST_CASE("A chain gives the same bits alone and in batches of 2, 7 and 64", "[segment][case-15]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const gates : {gate_kind::slow, gate_kind::zero}) {
    setting const of{.family = family, .gates = gates};
    std::vector<chain_data> all;
    all.push_back(random_chain(of, 6, 400, true));
    repair_run alone(of, all);
    REQUIRE(alone.go() == status::ok);
    auto const wanted = alone.all_of(0);
    for (std::size_t const count : {2u, 7u, 64u}) {
      std::vector<chain_data> first = all, last;
      while (first.size() < count) {
        auto other = random_chain(of, 2, 401 + first.size());
        for (auto& span : other.spans) {
          for_each_element(span.fresh.rows.v.view(), [](float& x, std::int64_t) { x *= 1e6f; });
        }
        first.push_back(std::move(other));
      }
      last = first;
      std::reverse(last.begin(), last.end());
      CAPTURE(count, name(gates));
      repair_run in_front(of, first), behind(of, last);
      REQUIRE(in_front.go(2) == status::ok);
      REQUIRE(behind.go(1) == status::ok);
      CHECK(same_bits(in_front.all_of(0), wanted));
      CHECK(same_bits(behind.all_of(count - 1), wanted));
    }
  }
}

TEST_CASE("Threads, dirty scratch and its alignment do not show in a repair", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .dims = {2, 4, 16, 24}};
  std::vector<chain_data> chains;
  for (std::uint64_t seed = 420; seed < 425; ++seed) chains.push_back(random_chain(of, 5, seed));
  repair_run reference_run(of, chains);
  REQUIRE(reference_run.go(1, 0) == status::ok);
  for (int const threads : {1, 2, 3}) {
    for (std::size_t const misalignment : {1u, 4u, 63u}) {
      repair_run run(of, chains);
      REQUIRE(run.go(threads, misalignment) == status::ok);
      for (std::size_t c = 0; c < chains.size(); ++c) CHECK(same_bits(run.all_of(c), reference_run.all_of(c)));
    }
  }
}

TEST_CASE("Two hundred repeats of a repair give the same bits", "[segment][case-08]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .dims = {1, 1, 8, 8}};
  std::vector<chain_data> chains;
  for (std::uint64_t seed = 430; seed < 434; ++seed) chains.push_back(random_chain(of, 5, seed));
  repair_run first(of, chains);
  REQUIRE(first.go(2) == status::ok);
  for (int repeat = 0; repeat < 200; ++repeat) {
    repair_run run(of, chains);
    REQUIRE(run.go(2) == status::ok);
    for (std::size_t c = 0; c < chains.size(); ++c) REQUIRE(same_bits(run.all_of(c), first.all_of(c)));
  }
}

TEST_CASE("A chain goes on from the slot that an earlier range of its spans left, bit for bit", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting of{.family = family, .gates = gate_kind::slow};
  if (family == family_id::retnet) of.frequencies = frequencies_of(16);
  std::vector<chain_data> chains;
  chains.push_back(random_chain(of, 7, 440));
  repair_run whole(of, chains);
  REQUIRE(whole.go() == status::ok);
  whole.check();
  for (std::int64_t at = 0; at <= 7; ++at) {
    for (bool const in_place : {false, true}) {
      repair_run run(of, chains);
      run.plan.chains = {{.first_span = 0, .spans = at, .initial_slot = -1, .final_slot = in_place ? 0 : 1}};
      REQUIRE(run.go() == status::ok);
      run.plan.chains = {{.first_span = at, .spans = 7 - at, .initial_slot = in_place ? 0 : 1, .final_slot = 0}};
      REQUIRE(run.go() == status::ok);
      CAPTURE(at, in_place);
      run.check();
      CHECK(same_bits(run.all_of(0), whole.all_of(0)));
    }
  }
}

TEST_CASE("One record serves many spans", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .gates = gate_kind::slow};
  std::vector<chain_data> chains(2);
  for (auto& chain : chains) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      auto span = cached_data(of, 30, 0, 0, 450);
      span.forwarded = 4;
      span.fresh = layer_inputs(spec_of(of, 4, 451 + i));
      chain.spans.push_back(std::move(span));
    }
  }
  repair_run run(of, chains);
  for (auto& span : run.plan.spans) span.cached = 0;
  REQUIRE(run.go(2) == status::ok);
  run.check();
}

TEST_CASE("Gaps in strides and transposed states do not show in a repair", "[segment][case-11]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (std::int32_t const ratio : {1, 2, 3, 4}) {
    setting of{.family = family, .dims = {2, 2 * ratio, 16, 24}};
    auto const build = [&] {
      std::vector<chain_data> chains;
      chains.push_back(random_chain(of, 6, 460));
      chains.push_back(random_chain(of, 3, 461, true));
      return chains;
    };
    auto const dense_chains = build();
    repair_run dense(of, dense_chains);
    of.how = layout::gaps;
    auto const gaps_chains = build();
    repair_run gaps(of, gaps_chains, layout::transposed);
    REQUIRE(dense.go() == status::ok);
    REQUIRE(gaps.go() == status::ok);
    dense.check();
    for (std::size_t c = 0; c < 2; ++c) CHECK(same_bits(dense.all_of(c), gaps.all_of(c)));
    CHECK(gaps.o.gaps_intact());
    CHECK(gaps.states.gaps_intact());
  }
  CHECK(plan_seam_repair(family, {2, 3, 16, 16}, {}, 0, 0, 0, {}, {}).error() == status::invalid_shape);
}

TEST_CASE("Empty chains and empty spans are the identity", "[segment][case-10]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family};
  std::vector<chain_data> chains(4);
  chains[1].initial = random_states(of.dims, 470);
  chains[2].initial = random_states(of.dims, 471);
  chains[2].spans.push_back(cached_data(of, 0, 8, 0, 1));
  chains[2].spans.push_back(fresh_data(of, 0, 0, 2));
  chains[3].spans.push_back(fresh_data(of, 0, 0, 3));
  repair_run run(of, chains);
  REQUIRE(run.go(2) == status::ok);
  std::vector<float> const zero(chains[1].initial.size(), 0.0f);
  CHECK(gather(run.states.view()[0]) == zero);
  CHECK(same_bits(gather(run.states.view()[2]), chains[1].initial));
  CHECK(same_bits(gather(run.states.view()[4]), chains[2].initial));
  CHECK(gather(run.states.view()[6]) == zero);

  std::vector<chain_data> const none;
  repair_run nothing(of, none);
  CHECK(nothing.go(2) == status::ok);
}

TEST_CASE("A repair skips slots of -1 and refuses those outside of the pool", "[segment][case-14]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  state_dims const dims{1, 1, 16, 16};
  auto const plan = [&](std::int32_t initial, std::int32_t final, std::int64_t slots) {
    return plan_seam_repair(family, dims, {}, 10, slots, 0, {{.rows = 10}},
                            {{.spans = 1, .initial_slot = initial, .final_slot = final}})
        .error();
  };
  CHECK(plan(-1, -1, 0) == status::ok);
  CHECK(plan(0, 1, 2) == status::ok);
  CHECK(plan(1, 1, 2) == status::ok);
  CHECK(plan(-1, 2, 2) == status::out_of_range);
  CHECK(plan(2, -1, 2) == status::out_of_range);
  CHECK(plan(-2, -1, 2) == status::out_of_range);
  CHECK(plan(-1, -2, 2) == status::out_of_range);
  CHECK(plan(std::numeric_limits<std::int32_t>::max(), -1, 2) == status::out_of_range);
  CHECK(plan_seam_repair(family, dims, {}, 10, 2, 0, {{.rows = 5}, {.first_row = 5, .rows = 5}},
                         {{.spans = 1, .final_slot = 1}, {.first_span = 1, .spans = 1, .final_slot = 1}})
            .error() == status::out_of_range);
  CHECK(plan_seam_repair(family, dims, {}, 10, 2, 0, {{.rows = 5}, {.first_row = 5, .rows = 5}},
                         {{.spans = 1, .final_slot = 1}, {.first_span = 1, .spans = 1, .initial_slot = 1}})
            .error() == status::out_of_range);

  setting const of{.family = family};
  std::vector<chain_data> chains;
  chains.push_back(random_chain(of, 6, 480));
  repair_run kept(of, chains), dropped(of, chains);
  dropped.plan.chains[0].final_slot = -1;
  REQUIRE(kept.go() == status::ok);
  REQUIRE(dropped.go() == status::ok);
  CHECK(same_bits(kept.o.packed(), dropped.o.packed()));
  for (float const x : dropped.states.packed()) REQUIRE(std::isnan(x));
}

TEST_CASE("Rows, spans and records outside of theirs are refused by the plan of a repair", "[segment]") {
  auto const refuses = [](seam_span const& span, seam_chain const& chain) {
    return plan_seam_repair(family_id::kda, {1, 1, 16, 16}, {}, 10, 0, 2, {span}, {chain}).error();
  };
  seam_chain const chain{.spans = 1};
  CHECK(refuses({.rows = 10}, chain) == status::ok);
  CHECK(refuses({.first_row = 2, .rows = 8, .cached = 1, .head_rows = 8, .has_body = true}, chain) == status::ok);
  CHECK(refuses({.rows = 11}, chain) == status::out_of_range);
  CHECK(refuses({.first_row = 1, .rows = 10}, chain) == status::out_of_range);
  CHECK(refuses({.first_row = -1, .rows = 1}, chain) == status::out_of_range);
  CHECK(refuses({.rows = -1}, chain) == status::out_of_range);
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  CHECK(refuses({.first_row = most, .rows = most}, chain) == status::out_of_range);
  CHECK(refuses({.rows = 1, .cached = 2, .head_rows = 8}, chain) == status::out_of_range);
  CHECK(refuses({.rows = 1, .cached = -2}, chain) == status::out_of_range);
  CHECK(refuses({.rows = 1}, {.first_span = 0, .spans = 2}) == status::out_of_range);
  CHECK(refuses({.rows = 1}, {.first_span = 2, .spans = 0}) == status::out_of_range);
  CHECK(refuses({.rows = 1}, {.first_span = -1, .spans = 1}) == status::out_of_range);
  CHECK(refuses({.rows = 1}, {.first_span = 0, .spans = -1}) == status::out_of_range);
  CHECK(refuses({.rows = 1}, {.first_span = most, .spans = most}) == status::out_of_range);
  // A seam longer than the head would be counted twice; a fresh span has nothing cached.
  CHECK(refuses({.rows = 9, .cached = 0, .head_rows = 8, .has_body = true}, chain) != status::ok);
  CHECK(refuses({.rows = 1, .cached = 0, .head_rows = -1}, chain) != status::ok);
  CHECK(refuses({.rows = 1, .head_rows = 8}, chain) != status::ok);
  CHECK(refuses({.rows = 1, .has_body = true}, chain) != status::ok);
}

TEST_CASE("A range of spans needs the records of its own spans alone, and has the bits that it has among all",
          "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family};
  std::vector<chain_data> chains(1);
  for (std::uint64_t seed = 510; seed < 513; ++seed) chains[0].spans.push_back(cached_data(of, 30, 4, 0, seed));
  repair_run whole(of, chains), pieces(of, chains);
  REQUIRE(whole.go() == status::ok);
  auto const all = pieces.records;
  for (std::int64_t span = 0; span < 3; ++span) {
    pieces.plan.chains[0].first_span = span;
    pieces.plan.chains[0].spans = 1;
    pieces.plan.chains[0].initial_slot = span == 0 ? -1 : 0;
    pieces.records.assign(3, {});
    pieces.records[to_index(span)] = all[to_index(span)];
    REQUIRE(pieces.go() == status::ok);
  }
  CHECK(same_bits(pieces.o.packed(), whole.o.packed()));
  CHECK(same_bits(gather(pieces.states.view()[0]), gather(whole.states.view()[0])));
  pieces.records[2] = {};  // the last range's own
  CHECK(pieces.go() == status::invalid_shape);
}

TEST_CASE("Misfits between a repair's plan and what is lent are refused, and nothing is written", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family};
  std::vector<chain_data> chains(1);
  chains[0].spans.push_back(cached_data(of, 30, 4, 0, 500));
  chains[0].spans.push_back(fresh_data(of, 10, 30, 501));

  auto const refuses = [&](char const* what, status::code wanted, auto damage) {
    INFO(what);
    repair_run run(of, chains);
    auto view = run.in.view();
    repair_outputs out{.o = run.o.view(), .states = run.states.view(), .flags = run.flags};
    auto records = run.records;
    std::int64_t bytes = run.plan.workspace_bytes(1);
    damage(view, records, out, bytes);
    lent_scratch memory(bytes);
    CHECK(repair(family, run.plan, view, records, out, {.workspace = memory.span()}) == wanted);
    for (float const x : run.o.packed()) REQUIRE(std::isnan(x));
    for (float const x : run.states.packed()) REQUIRE(std::isnan(x));
  };
  refuses("q dim", status::invalid_shape, [](auto& view, auto&, auto&, auto&) { view.q.extent[2] = 15; });
  refuses("k rows", status::invalid_shape, [](auto& view, auto&, auto&, auto&) { view.rows.k.extent[0] -= 1; });
  refuses("v missing", status::invalid_shape, [](auto& view, auto&, auto&, auto&) { view.rows.v = {}; });
  refuses("gates elements", status::invalid_shape,
          [](auto& view, auto&, auto&, auto&) { view.rows.gates.extent[2] += 1; });
  if (is_delta_rule(family)) {
    refuses("beta missing", status::invalid_shape, [](auto& view, auto&, auto&, auto&) { view.rows.beta = {}; });
    refuses("cached beta missing", status::invalid_shape,
            [](auto&, auto& records, auto&, auto&) { records[0].head.beta = {}; });
  }
  refuses("no records", status::invalid_shape, [](auto&, auto& records, auto&, auto&) { records.clear(); });
  refuses("head rows", status::invalid_shape,
          [](auto&, auto& records, auto&, auto&) { records[0].head = records[0].head.slice(0, 7); });
  refuses("head values", status::invalid_shape,
          [](auto&, auto& records, auto&, auto&) { records[0].head.v.extent[2] = 16; });
  refuses("body missing", status::invalid_shape, [](auto&, auto& records, auto&, auto&) { records[0].body = {}; });
  refuses("body state", status::invalid_shape,
          [](auto&, auto& records, auto&, auto&) { records[0].body.end_states.extent[1] = 8; });
  refuses("body operator", status::invalid_shape,
          [](auto&, auto& records, auto&, auto&) { records[0].body.operators.extent[1] += 1; });
  refuses("o rows", status::invalid_shape, [](auto&, auto&, auto& out, auto&) { out.o.extent[0] -= 1; });
  refuses("states missing", status::invalid_shape, [](auto&, auto&, auto& out, auto&) { out.states = {}; });
  refuses("states dims", status::invalid_shape, [](auto&, auto&, auto& out, auto&) { out.states.extent[3] = 16; });
  refuses("gate tag", status::invalid_argument,
          [](auto& view, auto&, auto&, auto&) { view.gates = gate_space::linear; });
  refuses("scratch", status::workspace_too_small, [](auto&, auto&, auto&, auto& bytes) { bytes -= 1; });

  refuses("o over v", status::invalid_shape, [](auto& view, auto&, auto& out, auto&) { view.rows.v = out.o; });
  refuses("o of one row", status::invalid_shape, [](auto&, auto&, auto& out, auto&) { out.o.stride[0] = 0; });

  repair_run twice(of, chains);
  twice.plan.chains.push_back({.first_span = 1, .spans = 1});
  lent_scratch room(twice.plan.workspace_bytes(1));
  CHECK(repair(family, twice.plan, twice.in.view(), twice.records, {.o = twice.o.view(), .states = twice.states.view()},
               {.workspace = room.span()}) == status::invalid_shape);

  repair_run run(of, chains);
  run.plan.family = family == family_id::kda ? family_id::gla : family_id::kda;
  lent_scratch memory(1 << 20);
  CHECK(repair(family, run.plan, run.in.view(), run.records, {.o = run.o.view(), .states = run.states.view()},
               {.workspace = memory.span()}) == status::invalid_argument);
}

TEST_CASE("Bad values in forwarded rows are flagged for their chain alone", "[segment][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family};
  std::vector<chain_data> chains;
  for (std::uint64_t i = 0; i < 3; ++i) {
    chain_data chain;
    chain.spans.push_back(cached_data(of, 30, 0, 0, 510 + 10 * i));
    chain.spans.push_back(cached_data(of, 30, 8, 30, 511 + 10 * i));
    chain.spans.push_back(fresh_data(of, 10, 60, 512 + 10 * i));
    chains.push_back(std::move(chain));
  }
  repair_run clean(of, chains);
  REQUIRE(clean.go() == status::ok);
  auto const flagged = [&](std::size_t span, std::uint32_t bit, auto damage) {
    auto damaged = chains;
    damage(damaged[1].spans[span].fresh);
    repair_run run(of, damaged);
    run.flags = {1u << 30, 1u << 30, 0};
    REQUIRE(run.go(2) == status::ok);
    CHECK(run.flags[0] == 1u << 30);
    CHECK((run.flags[1] & (bit | (1u << 30))) == (bit | (1u << 30)));
    CHECK(run.flags[2] == 0);
    CHECK(same_bits(run.all_of(0), clean.all_of(0)));
    CHECK(same_bits(run.all_of(2), clean.all_of(2)));
  };
  for (std::size_t const span : {1u, 2u}) {
    flagged(span, gate_out_of_range, [](layer_inputs& x) { x.rows.gates.view()(7, 1, 0) = 0.5f; });
    flagged(span, non_finite, [](layer_inputs& x) { x.rows.gates.view()(7, 1, 0) = quiet_nan; });
    flagged(span, non_finite, [](layer_inputs& x) { x.q.view()(0, 0, 3) = infinity; });
    flagged(span, non_finite, [](layer_inputs& x) { x.rows.k.view()(3, 0, 3) = quiet_nan; });
    flagged(span, non_finite, [](layer_inputs& x) { x.rows.v.view()(3, 1, 3) = -infinity; });
    if (is_delta_rule(family)) {
      flagged(span, non_finite, [](layer_inputs& x) { x.rows.beta.view()(3, 1) = quiet_nan; });
      flagged(span, expansive_update, [](layer_inputs& x) { x.rows.beta.view()(3, 1) = 2.1f; });
    }
  }
}

TEST_CASE("Later spans leave the outputs of earlier ones bitwise alone", "[segment][case-05]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .gates = gate_kind::slow};
  std::vector<chain_data> chains;
  chains.push_back(random_chain(of, 6, 530));
  repair_run whole(of, chains);
  REQUIRE(whole.go() == status::ok);
  for (std::int64_t kept = 0; kept <= 6; ++kept) {
    repair_run run(of, chains);
    run.plan.chains[0].spans = kept;
    REQUIRE(run.go() == status::ok);
    for (std::int64_t s = 0; s < kept; ++s) {
      auto const& span = run.plan.spans[to_index(s)];
      CHECK(same_bits(gather(run.o.view().rows(span.first_row, span.rows)),
                      gather(whole.o.view().rows(span.first_row, span.rows))));
    }
  }
}

TEST_CASE("A body that resets forgets what came before it, without a NaN", "[segment][case-03]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .gates = gate_kind::slow};
  for (float const steep : {-infinity, -1000.0f}) {
    std::vector<chain_data> chains(1);
    chains[0].initial = random_states(of.dims, 540);
    auto span = cached_data(of, 30, 4, 0, 541);
    for_each_element(span.canonical.rows.gates.view()[20], [&](float& x, std::int64_t) { x = steep; });
    layer_oracle body(family, of.dims, of.options);
    for (std::int64_t t = 8; t < 30; ++t) body.step(std::as_const(span.canonical.rows).view(), t);
    body.round_into(span.body.view());
    chains[0].spans.push_back(std::move(span));
    chains[0].spans.push_back(fresh_data(of, 10, 30, 542));
    repair_run run(of, chains);
    REQUIRE(run.go() == status::ok);
    run.check();
  }
}

TEST_CASE("Forwarded rows and slots past 2^31 elements equal a small rerun", "[segment][case-01]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  setting const of{.family = family, .dims = {1, 1, 16, 16}, .gates = gate_kind::slow};
  std::vector<chain_data> chains;
  chains.push_back(random_chain(of, 6, 550, true));
  repair_run small(of, chains);
  REQUIRE(small.go() == status::ok);

  std::int64_t const rows = small.plan.total_rows;
  std::int64_t const stride = (std::int64_t{1} << 33) / rows;
  sparse_floats const memory_of_rows((rows + 1) * stride), pool(2 * (std::int64_t{1} << 32));
  auto const at = [&](std::int64_t offset, std::int64_t width) {
    return tensor_view<float, 3>{memory_of_rows.data() + offset, {rows, 1, width}, {stride, width, 1}};
  };
  rows_view big{at(64, 16), at(128, 16), at(192, gate_width(family, 16)), {}};
  if (is_delta_rule(family)) big.beta = {memory_of_rows.data() + 256, {rows, 1}, {stride, 1}};
  copy_rows(small.in.rows.view(), 0, rows, big, 0);
  copy_elements(small.in.q.view(), at(0, 16));
  copy_elements(small.o.view(), at(320, 16));
  for_each_element(at(320, 16), [](float& x, std::int64_t) { x = quiet_nan; });
  tensor_view<float, 4> const states{pool.data(), {2, 1, 16, 16}, {std::int64_t{1} << 32, 256, 16, 1}};
  for_each_element(states[1], [&](float& x, std::int64_t i) { x = chains[0].initial[to_index(i)]; });
  lent_scratch memory(small.plan.workspace_bytes(1));
  REQUIRE(repair(family, small.plan, {at(0, 16), big, gate_space::natural_log}, small.records,
                 {.o = at(320, 16), .states = states}, {.workspace = memory.span()}) == status::ok);
  auto const o = at(320, 16);
  for (auto const& span : small.plan.spans) {
    CHECK(same_bits(gather(o.rows(span.first_row, span.rows)), gather(small.o.view().rows(span.first_row, span.rows))));
  }
  CHECK(same_bits(gather(states[0]), gather(small.states.view()[0])));
}

}  // namespace
