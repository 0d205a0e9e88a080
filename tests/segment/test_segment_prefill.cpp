// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/segment_prefill.hpp"

#include <catch2/catch.hpp>

#include <vector>

#include "segment/prefill_run.hpp"
#include "support/sparse_memory.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

// Positions in [0, last] that matter to a run with W head rows: all near its start, near W and near the first points
// where a run may be broken, and some between.
std::vector<std::int64_t> telling_positions(std::int64_t head_rows, std::int64_t chunk, std::int64_t last) {
  std::vector<std::int64_t> out;
  for (std::int64_t t = 0; t <= last; ++t) {
    std::int64_t const off = (t - head_rows + chunk + 3) % chunk;
    if (t < head_rows + 40 || off <= 6 || t % 61 == 0 || t == last) out.push_back(t);
  }
  return out;
}

// The same inputs with other values in some rows.
template <class Change>
layer_inputs changed(layer_inputs const& in, Change change) {
  auto copy = in;
  change(copy.q.view(), copy.rows.view());
  return copy;
}

TEMPLATE_TEST_CASE("Outputs, body and state equal the sequential recurrence for every input and W", "[segment]", retnet,
                   gla, gated_deltanet, kda) {
  std::uint64_t seed = 1;
  for (auto const& dims : {state_dims{1, 1, 16, 48}, state_dims{1, 1, 64, 32}, state_dims{1, 1, 128, 128},
                           state_dims{1, 2, 5, 3}, state_dims{1, 1, 33, 17}}) {
    for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical}) {
      for (auto const gates : {gate_kind::zero, gate_kind::slow, gate_kind::mixed, gate_kind::fast, gate_kind::steep,
                               gate_kind::resets}) {
        beta_kind const kinds[] = {beta_kind::uniform, beta_kind::two, beta_kind::one, beta_kind::zero};
        std::int32_t const heads_kept[] = {0, 1, 8, 16};
        input_spec const spec{.family = TestType::id, .dims = dims, .rows = dims.key_dim == 128 ? 150 : 200,
                              .keys = keys, .gates = gates, .betas = kinds[seed % 4], .seed = seed};
        auto const head_rows = heads_kept[(seed / 4) % 4];
        INFO(spec.text() << ", W " << head_rows);
        layer_inputs const in(spec);
        prefill_run run(planned(spec, {.q_scale = 0.25f}, head_rows, 1, {{.rows = spec.rows, .final_slot = 0}}));
        REQUIRE(run.go<TestType>(in.view()) == status::ok);
        check_sequence(run, 0, in.view());
        CHECK(run.flags[0] == 0);
        ++seed;
      }
    }
  }
}

TEMPLATE_TEST_CASE("Lengths 1 to 130 equal the sequential recurrence with poison after the last row",
                   "[segment][case-07]", retnet, gla, gated_deltanet, kda) {
  check_all_lengths<TestType>({.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = 130,
                               .keys = key_kind::correlated, .gates = gate_kind::mixed, .seed = 30}, 8);
  check_all_lengths<TestType>({.family = TestType::id, .dims = {1, 1, 16, 16}, .rows = 130,
                               .gates = gate_kind::resets, .seed = 31}, 0);
}

TEMPLATE_TEST_CASE("A state that a run starts from enters its outputs and its end, not its body", "[segment]", retnet,
                   gla, gated_deltanet, kda) {
  for (auto const gates : {gate_kind::zero, gate_kind::mixed, gate_kind::resets}) {
    input_spec const spec{.family = TestType::id, .dims = {2, 2, 16, 24}, .rows = 150, .gates = gates, .seed = 40};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 2, {{.rows = 150, .initial_slot = 1, .final_slot = 0}}));
    auto const initial = random_states(spec.dims, 41);
    run.set_state(1, initial);
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    INFO(spec.text());
    check_sequence(run, 0, in.view(), initial);
    CHECK(same_bits(run.state(1), initial));

    prefill_run from_zero(planned(spec, {}, 8, 2, {{.rows = 150}}));
    REQUIRE(from_zero.go<TestType>(in.view()) == status::ok);
    CHECK(same_bits(from_zero.bodies[0].packed(), run.bodies[0].packed()));
  }
}

TEMPLATE_TEST_CASE("A run broken anywhere goes on, and bit for bit where the break lies on the grid", "[segment]",
                   retnet, gla, gated_deltanet, kda) {
  std::int64_t const chunk = prefill_chunk(TestType::id);
  REQUIRE(chunk > 0);
  for (std::int32_t const head_rows : {0, 1, 8, 16}) {
    input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = head_rows + 2 * chunk + 11,
                          .gates = head_rows == 1 ? gate_kind::resets : gate_kind::mixed, .seed = 50};
    layer_inputs const in(spec);
    prefill_run whole(planned(spec, {}, head_rows, 1, {{.rows = spec.rows, .final_slot = 0}}));
    REQUIRE(whole.go<TestType>(in.view()) == status::ok);
    sequence_reference const wanted(whole.plan, 0, in.view());
    wanted.check(whole, 0);
    for (std::int64_t const at : telling_positions(head_rows, chunk, spec.rows)) {
      INFO(spec.text() << ", W " << head_rows << ", broken at " << at);
      prefill_run run(planned(spec, {}, head_rows, 1, {{.rows = at, .final_slot = 0}}));
      // One head for both calls: the second sees the rows that the first has written.
      rows_data head(TestType::id, spec.dims, head_rows);
      auto body = run.bodies[0].view();
      auto const step = [&](prefill_plan const& plan) {
        auto part = head.view().slice(0, std::min<std::int64_t>(head_rows, plan.sequences[0].position +
                                                                               plan.sequences[0].rows));
        lent_scratch memory(plan.workspace_bytes(1));
        return segment_prefill<TestType>(plan, in.view(), {.o = run.o.view(), .states = run.states.view(),
                                                           .bodies = {&body, 1}, .heads = {&part, 1},
                                                           .flags = run.flags}, {.workspace = memory.span()});
      };
      REQUIRE(step(run.plan) == status::ok);
      run.plan = planned(spec, {}, head_rows, 1, {{.first_row = at, .rows = spec.rows - at, .position = at,
                                                   .initial_slot = 0, .final_slot = 0}});
      REQUIRE(step(run.plan) == status::ok);

      run.plan = whole.plan;
      run.heads[0] = head;
      wanted.check(run, 0);
      if (at >= head_rows && (at - head_rows) % chunk == 0) CHECK(same_bits(run.all_of(0), whole.all_of(0)));
    }
  }
}

TEMPLATE_TEST_CASE("A run fed token by token ends where the recurrence does", "[segment]", retnet, gla, gated_deltanet,
                   kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = 100, .gates = gate_kind::mixed,
                        .seed = 60};
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 1, {{.rows = 0, .final_slot = 0}}));
  rows_data head(TestType::id, spec.dims, 8);
  auto body = run.bodies[0].view();
  for (std::int64_t t = 0; t < spec.rows; ++t) {
    auto const plan = planned(spec, {}, 8, 1, {{.first_row = t, .rows = 1, .position = t,
                                                .initial_slot = t == 0 ? -1 : 0, .final_slot = 0}});
    auto part = head.view().slice(0, std::min<std::int64_t>(8, t + 1));
    lent_scratch memory(plan.workspace_bytes(1));
    REQUIRE(segment_prefill<TestType>(plan, in.view(), {.o = run.o.view(), .states = run.states.view(),
                                                        .bodies = {&body, 1}, .heads = {&part, 1}},
                                      {.workspace = memory.span()}) == status::ok);
  }
  run.plan = planned(spec, {}, 8, 1, {{.rows = spec.rows, .final_slot = 0}});
  run.heads[0] = head;
  check_sequence(run, 0, in.view());
}

TEMPLATE_TEST_CASE("One, two, three and four value heads share a key head, and a non-multiple is refused",
                   "[segment][case-11]", retnet, gla, gated_deltanet, kda) {
  for (std::int32_t const ratio : {1, 2, 3, 4}) {
    input_spec const spec{.family = TestType::id, .dims = {2, 2 * ratio, 16, 24}, .rows = 100,
                          .gates = gate_kind::mixed, .seed = 70};
    INFO(spec.text());
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = 100, .final_slot = 0}}));
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    check_sequence(run, 0, in.view());
  }
  for (auto const& dims : {state_dims{2, 3, 16, 16}, state_dims{4, 2, 16, 16}, state_dims{1, 1, 0, 16}}) {
    CHECK(plan_segment_prefill(TestType::id, dims, {}, 8, 10, 0, {{.rows = 10}}).error() == status::invalid_shape);
  }
}

TEMPLATE_TEST_CASE("Gaps in the strides of every input and output are neither read nor written", "[segment][case-11]",
                   retnet, gla, gated_deltanet, kda) {
  for (std::int32_t const ratio : {1, 3}) {
    input_spec spec{.family = TestType::id, .dims = {2, 2 * ratio, 16, 24}, .rows = 100, .gates = gate_kind::mixed,
                    .seed = 80};
    layer_inputs const dense(spec);
    spec.how = layout::gaps;
    layer_inputs const gaps(spec);
    auto const plan = planned(spec, {}, 8, 2, {{.rows = 100, .initial_slot = 0, .final_slot = 1}});
    prefill_run straight(plan), strided(plan, layout::gaps, layout::gaps);
    for (auto* run : {&straight, &strided}) run->set_state(0, random_states(spec.dims, 81));
    REQUIRE(straight.go<TestType>(dense.view()) == status::ok);
    REQUIRE(strided.go<TestType>(gaps.view()) == status::ok);
    CHECK(same_bits(straight.all_of(0), strided.all_of(0)));
    CHECK(strided.o.gaps_intact());
    CHECK(strided.states.gaps_intact());
    CHECK(strided.bodies[0].gaps_intact());
    CHECK(strided.heads[0].gaps_intact());
    check_sequence(strided, 0, gaps.view(), random_states(spec.dims, 81));
  }
}

TEMPLATE_TEST_CASE("A pool of transposed states holds the same numbers", "[segment]", retnet, gla, gated_deltanet,
                   kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 90, .gates = gate_kind::slow,
                        .seed = 90};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 3, {{.rows = 90, .initial_slot = 2, .final_slot = 1}});
  prefill_run straight(plan), turned(plan, layout::dense, layout::transposed);
  REQUIRE(turned.states.view().stride[2] == 1);
  for (auto* run : {&straight, &turned}) run->set_state(2, random_states(spec.dims, 91));
  REQUIRE(straight.go<TestType>(in.view()) == status::ok);
  REQUIRE(turned.go<TestType>(in.view()) == status::ok);
  CHECK(same_bits(straight.all_of(0), turned.all_of(0)));
  CHECK(turned.states.gaps_intact());
}

TEMPLATE_TEST_CASE("Gates in natural logs, base-2 logs and linear space mean the same decays", "[segment][case-06]",
                   retnet, gla, gated_deltanet, kda) {
  for (auto const space : {gate_space::natural_log, gate_space::log2, gate_space::linear}) {
    for (auto const gates : {gate_kind::slow, gate_kind::mixed, gate_kind::fast, gate_kind::resets}) {
      input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = 120, .gates = gates, .seed = 100,
                            .space = space};
      INFO(spec.text() << ", space " << static_cast<int>(space));
      layer_inputs const in(spec);
      prefill_run run(planned(spec, {.gates = space}, 8, 1, {{.rows = 120, .final_slot = 0}}));
      REQUIRE(run.go<TestType>(in.view()) == status::ok);
      check_sequence(run, 0, in.view());
      CHECK(run.flags[0] == 0);
    }
  }
}

TEMPLATE_TEST_CASE("A gate tag that differs from the plan's is refused", "[segment][case-06]", retnet, gla,
                   gated_deltanet, kda) {
  gate_space const spaces[] = {gate_space::natural_log, gate_space::log2, gate_space::linear};
  for (auto const of_plan : spaces) {
    for (auto const of_call : spaces) {
      input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 16}, .rows = 10, .seed = 101, .space = of_call};
      layer_inputs const in(spec);
      prefill_run run(planned(spec, {.gates = of_plan}, 8, 0, {{.rows = 10}}));
      CHECK(run.go<TestType>(in.view()) == (of_plan == of_call ? status::ok : status::invalid_argument));
    }
  }
}

TEMPLATE_TEST_CASE("A plan of another family is refused", "[segment]", retnet, gla, gated_deltanet, kda) {
  for (auto const other : {family_id::retnet, family_id::gla, family_id::gated_deltanet, family_id::kda}) {
    if (other == TestType::id) continue;
    input_spec const spec{.family = other, .dims = {1, 1, 16, 16}, .rows = 10, .seed = 102};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 0, {{.rows = 10}}));
    CHECK(run.go<TestType>(in.view()) == status::invalid_argument);
  }
}

TEMPLATE_TEST_CASE("Queries and keys are normalised inside, and heads keep the keys as given", "[segment]", retnet, gla,
                   gated_deltanet, kda) {
  for (float const epsilon : {1e-6f, 0.5f}) {
    input_spec const spec{.family = TestType::id, .dims = {2, 4, 16, 24}, .rows = 100, .gates = gate_kind::mixed,
                          .seed = 110};
    layer_inputs const unit(spec);
    auto const in = changed(unit, [](tensor_view<float, 3>, rows_view rows) {
      for_each_element(rows.k, [](float& x, std::int64_t i) { x *= 0.01f + static_cast<float>(i % 700); });
      for (std::int64_t i = 0; i < 16; ++i) rows.k(50, 0, i) = 0.0f;
    });
    prefill_run run(planned(spec, {.q_scale = 0.5f, .l2_normalize = true, .l2_epsilon = epsilon}, 8, 1,
                            {{.rows = 100, .final_slot = 0}}));
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    INFO(spec.text() << ", epsilon " << epsilon);
    check_sequence(run, 0, in.view());
    CHECK(run.flags[0] == 0);
  }
}

TEMPLATE_TEST_CASE("A constant decay is a gate view whose token stride is zero", "[segment]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {2, 4, 16, 24}, .rows = 100, .gates = gate_kind::mixed,
                        .seed = 120};
  layer_inputs const first(spec);
  auto const repeated = changed(first, [](tensor_view<float, 3>, rows_view rows) {
    auto const gates = gather(rows.gates[0]);
    for (std::int64_t t = 0; t < rows.count(); ++t) {
      for_each_element(rows.gates[t], [&](float& x, std::int64_t i) { x = gates[to_index(i)]; });
    }
  });
  auto constant = first.view();
  constant.rows.gates.stride[0] = 0;
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 100, .final_slot = 0}});
  prefill_run written_out(plan), strided(plan);
  REQUIRE(written_out.go<TestType>(repeated.view()) == status::ok);
  REQUIRE(strided.go<TestType>(constant) == status::ok);
  CHECK(same_bits(written_out.all_of(0), strided.all_of(0)));
  check_sequence(strided, 0, constant);
}

TEMPLATE_TEST_CASE("A slot of -1 is skipped and slots outside of the pool are refused", "[segment][case-14]", retnet,
                   gla, gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 16}, .rows = 20, .seed = 130};
  auto const plan = [&](std::int32_t initial, std::int32_t final, std::int64_t slots) {
    return plan_segment_prefill(spec.family, spec.dims, {}, 8, 20, slots,
                                {{.rows = 20, .initial_slot = initial, .final_slot = final}}).error();
  };
  CHECK(plan(-1, -1, 0) == status::ok);
  CHECK(plan(0, 1, 2) == status::ok);
  CHECK(plan(-1, 2, 2) == status::out_of_range);
  CHECK(plan(2, -1, 2) == status::out_of_range);
  CHECK(plan(-2, -1, 2) == status::out_of_range);
  CHECK(plan(-1, -2, 2) == status::out_of_range);
  CHECK(plan(0, -1, 0) == status::out_of_range);
  CHECK(plan(std::numeric_limits<std::int32_t>::max(), -1, 2) == status::out_of_range);
  CHECK(plan(-1, std::numeric_limits<std::int32_t>::min(), 2) == status::out_of_range);
  CHECK(plan_segment_prefill(spec.family, spec.dims, {}, 8, 20, 2,
                             {{.rows = 10, .final_slot = 1}, {.first_row = 10, .rows = 10, .final_slot = 1}})
            .error() == status::out_of_range);
  // What one sequence reads no other may write: they go at the same time.
  CHECK(plan_segment_prefill(spec.family, spec.dims, {}, 8, 20, 2,
                             {{.rows = 10, .final_slot = 1}, {.first_row = 10, .rows = 10, .initial_slot = 1}})
            .error() == status::out_of_range);
  CHECK(plan_segment_prefill(spec.family, spec.dims, {}, 8, 20, 2,
                             {{.rows = 10, .initial_slot = 1, .final_slot = 1},
                              {.first_row = 10, .rows = 10, .initial_slot = 1, .final_slot = 0}})
            .error() == status::out_of_range);
  // Many may start from one state, and many may end nowhere.
  CHECK(plan_segment_prefill(spec.family, spec.dims, {}, 8, 20, 2,
                             {{.rows = 10, .initial_slot = 1}, {.first_row = 10, .rows = 10, .initial_slot = 1}}));

  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 3, {{.rows = 20, .initial_slot = -1, .final_slot = -1}}));
  REQUIRE(run.go<TestType>(in.view()) == status::ok);
  check_sequence(run, 0, in.view());
  for (float const x : run.states.packed()) CHECK(std::isnan(x));
}

TEMPLATE_TEST_CASE("Only the final slots of a pool are written, in place too", "[segment][case-14]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 150, .seed = 131};
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 4, {{.rows = 70, .initial_slot = 2, .final_slot = 2},
                                           {.first_row = 70, .rows = 80, .initial_slot = 3, .final_slot = 1}}));
  auto const second = random_states(spec.dims, 132), third = random_states(spec.dims, 133);
  run.set_state(2, second);
  run.set_state(3, third);
  REQUIRE(run.go<TestType>(in.view(), 2) == status::ok);
  INFO(spec.text());
  check_sequence(run, 0, in.view(), second);
  check_sequence(run, 1, in.view(), third);
  CHECK(same_bits(run.state(3), third));
  for (float const x : run.state(0)) CHECK(std::isnan(x));
}

TEMPLATE_TEST_CASE("One and two threads give the same bits", "[segment]", retnet, gla, gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {2, 4, 16, 24}, .rows = 400, .seed = 140};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 3, {{.rows = 300, .final_slot = 0},
                                             {.first_row = 300, .rows = 5, .final_slot = 1},
                                             {.first_row = 305, .rows = 95, .final_slot = 2}});
  prefill_run one(plan), two(plan), three(plan);
  REQUIRE(one.go<TestType>(in.view(), 1) == status::ok);
  REQUIRE(two.go<TestType>(in.view(), 2) == status::ok);
  REQUIRE(three.go<TestType>(in.view(), 3) == status::ok);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(same_bits(one.all_of(i), two.all_of(i)));
    CHECK(same_bits(one.all_of(i), three.all_of(i)));
  }
}

// Slow decay: with a fast one, leaks between sequences hide.
TEMPLATE_TEST_CASE("A sequence gives the same bits alone and in batches of 2, 7 and 64", "[segment][case-15]", retnet,
                   gla, gated_deltanet, kda) {
  for (auto const gates : {gate_kind::slow, gate_kind::zero}) {
    for (std::int64_t const own : {5, 8, 9, 70, 150}) {
      for (std::int64_t const count : {2, 7, 64}) {
        for (bool const last : {false, true}) {
          std::int64_t const others = 37 * (count - 1);
          input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = own + others, .gates = gates,
                                .seed = 150};
          auto alone_spec = spec;
          alone_spec.rows = own;
          layer_inputs const alone_in(alone_spec);
          // Neighbours that would be seen: large values.
          layer_inputs in(spec);
          for_each_element(in.rows.v.view(), [](float& x, std::int64_t) { x *= 1e6f; });
          std::int64_t const at = last ? others : 0;
          copy_rows(alone_in.view(), 0, own, in, at);

          std::vector<prefill_sequence> sequences;
          if (!last) sequences.push_back({.first_row = 0, .rows = own, .final_slot = 0});
          for (std::int64_t i = 1; i < count; ++i) {
            sequences.push_back({.first_row = (last ? 0 : own) + 37 * (i - 1), .rows = 37,
                                 .final_slot = static_cast<std::int32_t>(i)});
          }
          if (last) sequences.push_back({.first_row = at, .rows = own, .final_slot = 0});
          prefill_run alone(planned(alone_spec, {}, 8, 1, {{.rows = own, .final_slot = 0}}));
          prefill_run batch(planned(spec, {}, 8, count, sequences));
          REQUIRE(alone.go<TestType>(alone_in.view()) == status::ok);
          REQUIRE(batch.go<TestType>(in.view(), 2) == status::ok);
          INFO(spec.text() << ", own " << own << ", batch " << count << ", last " << last);
          CHECK(same_bits(alone.all_of(0), batch.all_of(last ? to_index(count - 1) : 0)));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("Dirty scratch at any alignment and of exactly the planned size does not show", "[segment]", retnet,
                   gla, gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 3, 16, 24}, .rows = 200, .seed = 160};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 150, .final_slot = 0}, {.first_row = 150, .rows = 50}});
  prefill_run reference(plan);
  REQUIRE(reference.go<TestType>(in.view(), 1, 0) == status::ok);
  for (std::size_t const misalignment : {1u, 2u, 4u, 31u, 63u}) {
    for (int const threads : {1, 2}) {
      prefill_run run(plan);
      REQUIRE(run.go<TestType>(in.view(), threads, misalignment) == status::ok);
      CHECK(same_bits(run.all_of(0), reference.all_of(0)));
      CHECK(same_bits(run.all_of(1), reference.all_of(1)));
    }
  }
}

TEMPLATE_TEST_CASE("Scratch that is a byte too small is refused, and nothing is written", "[segment]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 50, .seed = 161};
  layer_inputs const in(spec);
  for (int const threads : {1, 2}) {
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = 50, .final_slot = 0}}));
    std::int64_t const bytes = run.plan.workspace_bytes(threads);
    REQUIRE(bytes > 0);
    lent_scratch memory(bytes - 1);
    CHECK(segment_prefill<TestType>(run.plan, in.view(), {.o = run.o.view(), .states = run.states.view()},
                                    {.workspace = memory.span(), .threads = threads}) == status::workspace_too_small);
    for (float const x : run.o.packed()) REQUIRE(std::isnan(x));
    for (float const x : run.states.packed()) REQUIRE(std::isnan(x));
  }
}

TEST_CASE("The scratch of a prefill does not grow with the batch or its lengths, only with threads", "[segment]") {
  for (auto const family : {family_id::retnet, family_id::gla, family_id::gated_deltanet, family_id::kda}) {
    input_spec spec{.family = family, .dims = {1, 2, 64, 64}, .rows = 100000};
    auto const bytes = planned(spec, {}, 8, 0, {{.rows = 100000}}).workspace_bytes(2);
    CHECK(bytes < 16 << 20);
    CHECK(planned(spec, {}, 8, 0, {{.rows = 100000}}).workspace_bytes(1) <= bytes);
  }
}

TEMPLATE_TEST_CASE("Every output may be left out without changing the others", "[segment]", retnet, gla, gated_deltanet,
                   kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 100, .seed = 162};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 100, .final_slot = 0}});
  prefill_run all(plan);
  REQUIRE(all.go<TestType>(in.view()) == status::ok);
  for (unsigned wanted = 0; wanted < 16; ++wanted) {
    CAPTURE(wanted);
    prefill_run run((wanted & 8u) != 0 ? plan : planned(spec, {}, 8, 0, {{.rows = 100}}));
    auto body = run.bodies[0].view();
    auto head = run.heads[0].view();
    prefill_outputs out;
    if ((wanted & 1u) != 0) out.o = run.o.view();
    if ((wanted & 2u) != 0) out.bodies = {&body, 1};
    if ((wanted & 4u) != 0) out.heads = {&head, 1};
    if ((wanted & 8u) != 0) out.states = run.states.view();
    lent_scratch memory(run.plan.workspace_bytes(1));
    REQUIRE(segment_prefill<TestType>(run.plan, in.view(), out, {.workspace = memory.span()}) == status::ok);
    if ((wanted & 1u) != 0) CHECK(same_bits(run.o.packed(), all.o.packed()));
    if ((wanted & 2u) != 0) CHECK(same_bits(run.bodies[0].packed(), all.bodies[0].packed()));
    if ((wanted & 4u) != 0) CHECK(same_bits(run.heads[0].packed(), all.heads[0].packed()));
    if ((wanted & 8u) != 0) CHECK(same_bits(run.states.packed(), all.states.packed()));
  }
}

TEMPLATE_TEST_CASE("Inputs and outputs of other shapes are refused, and nothing is written", "[segment]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {2, 4, 16, 24}, .rows = 50, .seed = 163};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 50, .final_slot = 0}});

  auto const refuses = [&](char const* what, auto damage) {
    INFO(what);
    prefill_run run(plan);
    auto view = in.view();
    auto body = run.bodies[0].view();
    auto head = run.heads[0].view();
    prefill_outputs out{.o = run.o.view(), .states = run.states.view(), .bodies = {&body, 1}, .heads = {&head, 1},
                        .flags = run.flags};
    damage(view, out, body, head);
    lent_scratch memory(plan.workspace_bytes(1));
    CHECK(segment_prefill<TestType>(plan, view, out, {.workspace = memory.span()}) == status::invalid_shape);
    for (float const x : run.o.packed()) REQUIRE(std::isnan(x));
    for (float const x : run.states.packed()) REQUIRE(std::isnan(x));
  };
  refuses("q rows", [](auto& view, auto&, auto&, auto&) { view.q.extent[0] = 49; });
  refuses("q heads", [](auto& view, auto&, auto&, auto&) { view.q.extent[1] = 4; });
  refuses("q dim", [](auto& view, auto&, auto&, auto&) { view.q.extent[2] = 15; });
  refuses("q stride", [](auto& view, auto&, auto&, auto&) { view.q.stride[2] = 2; });
  refuses("k rows", [](auto& view, auto&, auto&, auto&) { view.rows.k.extent[0] = 51; });
  refuses("k heads", [](auto& view, auto&, auto&, auto&) { view.rows.k.extent[1] = 1; });
  refuses("k missing", [](auto& view, auto&, auto&, auto&) { view.rows.k = {}; });
  refuses("v rows", [](auto& view, auto&, auto&, auto&) { view.rows.v.extent[0] = 10; });
  refuses("v heads", [](auto& view, auto&, auto&, auto&) { view.rows.v.extent[1] = 2; });
  refuses("v dim", [](auto& view, auto&, auto&, auto&) { view.rows.v.extent[2] = 16; });
  refuses("gates rows", [](auto& view, auto&, auto&, auto&) { view.rows.gates.extent[0] = 1; });
  refuses("gates elements", [](auto& view, auto&, auto&, auto&) { view.rows.gates.extent[2] += 1; });
  refuses("gates missing", [](auto& view, auto&, auto&, auto&) { view.rows.gates = {}; });
  if (TestType::delta_rule) {
    refuses("beta missing", [](auto& view, auto&, auto&, auto&) { view.rows.beta = {}; });
    refuses("beta heads", [](auto& view, auto&, auto&, auto&) { view.rows.beta.extent[1] = 2; });
  }
  refuses("o rows", [](auto&, auto& out, auto&, auto&) { out.o.extent[0] = 49; });
  refuses("o dim", [](auto&, auto& out, auto&, auto&) { out.o.extent[2] = 16; });
  refuses("states missing", [](auto&, auto& out, auto&, auto&) { out.states = {}; });
  refuses("states slots", [](auto&, auto& out, auto&, auto&) { out.states.extent[0] = 0; });
  refuses("states heads", [](auto&, auto& out, auto&, auto&) { out.states.extent[1] = 2; });
  refuses("states swapped", [](auto&, auto& out, auto&, auto&) { std::swap(out.states.extent[2], out.states.extent[3]); });
  refuses("body operator", [](auto&, auto&, auto& body, auto&) { body.operators.extent[1] += 1; });
  refuses("body state", [](auto&, auto&, auto& body, auto&) { body.end_states.extent[2] = 16; });
  refuses("head rows", [](auto&, auto&, auto&, auto& head) { head = head.slice(0, 7); });
  refuses("flags", [](auto&, auto& out, auto&, auto&) {
    static std::uint32_t two[2] = {0, 0};
    out.flags = two;
  });
}

TEST_CASE("Rows outside of the inputs and a negative W are refused by the plan", "[segment]") {
  state_dims const dims{1, 1, 16, 16};
  auto const refuses = [&](std::int32_t head_rows, std::int64_t total, prefill_sequence const& sequence) {
    return plan_segment_prefill(family_id::gla, dims, {}, head_rows, total, 0, {sequence}).error();
  };
  CHECK(refuses(8, 10, {.rows = 10}) == status::ok);
  CHECK(refuses(0, 10, {.first_row = 10, .rows = 0}) == status::ok);
  CHECK(refuses(-1, 10, {.rows = 10}) == status::invalid_shape);
  CHECK(refuses(8, 10, {.rows = 11}) == status::invalid_shape);
  CHECK(refuses(8, 10, {.first_row = 1, .rows = 10}) == status::invalid_shape);
  CHECK(refuses(8, 10, {.first_row = -1, .rows = 5}) == status::invalid_shape);
  CHECK(refuses(8, 10, {.first_row = 5, .rows = -1}) == status::invalid_shape);
  CHECK(refuses(8, -1, {}) == status::invalid_shape);
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  CHECK(refuses(8, 10, {.first_row = most, .rows = most}) == status::invalid_shape);
  CHECK(refuses(8, 10, {.rows = 5, .position = -1}) != status::ok);
}

TEST_CASE("Plans are values", "[segment]") {
  input_spec const spec{.family = family_id::kda, .dims = {1, 1, 16, 16}, .rows = 10};
  auto const plan = planned(spec, {}, 8, 0, {{.rows = 10}});
  auto other = plan;
  CHECK(other == plan);
  other.sequences[0].rows = 9;
  CHECK(!(other == plan));
}

TEST_CASE("Cumulative lengths that do not run from zero up to the rows are errors", "[segment][case-09]") {
  auto const read = [](std::vector<std::int32_t> const& lengths, std::int64_t rows) {
    return sequences_from_cu_seqlens(lengths, rows);
  };
  auto const right = read({0, 3, 3, 10}, 10);
  REQUIRE(right);
  CHECK(*right == std::vector<prefill_sequence>{{.first_row = 0, .rows = 3}, {.first_row = 3, .rows = 0},
                                                {.first_row = 3, .rows = 7}});
  auto const refused = [&](std::vector<std::int32_t> const& lengths, std::int64_t rows) {
    auto const found = read(lengths, rows);
    return found.error() == status::invalid_shape || found.error() == status::out_of_range;
  };
  CHECK(refused({1, 3, 10}, 10));
  CHECK(refused({-1, 3, 10}, 10));
  CHECK(refused({0, 4, 3, 10}, 10));
  CHECK(refused({0, 3, 9}, 10));
  CHECK(refused({0, 3, 11}, 10));
  CHECK(refused({0, 11, 10}, 10));
  CHECK(refused({0, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min(), 10}, 10));
  CHECK(refused({}, 10));
  CHECK(refused({}, 0));
  CHECK(refused({0}, 10));
  CHECK(refused({10}, 10));
}

TEST_CASE("Cumulative lengths of empty batches give empty sequences", "[segment][case-10]") {
  auto const none = sequences_from_cu_seqlens(std::vector<std::int32_t>{0}, 0);
  REQUIRE(none);
  CHECK(none->empty());
  auto const empty = sequences_from_cu_seqlens(std::vector<std::int32_t>{0, 0, 0}, 0);
  REQUIRE(empty);
  CHECK(empty->size() == 2);
}

TEMPLATE_TEST_CASE("Zero-length sequences are the identity, alone and between others", "[segment][case-10]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 60, .seed = 170};
  layer_inputs const in(spec);
  summary_data neutral(TestType::form, spec.dims);
  REQUIRE(set_identity<TestType>(spec.dims, neutral.view(), {}) == status::ok);
  for (std::int32_t const head_rows : {0, 8}) {
    prefill_run run(planned(spec, {}, head_rows, 5,
                            {{.first_row = 0, .rows = 0, .initial_slot = 0, .final_slot = 1},
                             {.first_row = 0, .rows = 60, .initial_slot = -1, .final_slot = 2},
                             {.first_row = 60, .rows = 0, .initial_slot = -1, .final_slot = 3},
                             {.first_row = 30, .rows = 0, .initial_slot = 4, .final_slot = 4}}));
    auto const initial = random_states(spec.dims, 171);
    run.set_state(0, initial);
    run.set_state(4, initial);
    REQUIRE(run.go<TestType>(in.view(), 2) == status::ok);
    for (std::size_t const which : {0u, 2u, 3u}) CHECK(run.bodies[which].packed() == neutral.packed());
    CHECK(same_bits(run.state(1), initial));
    CHECK(same_bits(run.state(4), initial));
    CHECK(run.state(3) == std::vector<float>(initial.size(), 0.0f));
    CHECK(run.flags == std::vector<std::uint32_t>(4, 0));
    check_sequence(run, 1, in.view());
  }
}

TEMPLATE_TEST_CASE("A batch without rows or without sequences returns", "[segment][case-10]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 0, .seed = 172};
  layer_inputs const in(spec);
  summary_data neutral(TestType::form, spec.dims);
  REQUIRE(set_identity<TestType>(spec.dims, neutral.view(), {}) == status::ok);
  prefill_run none(planned(spec, {}, 8, 0, {}));
  CHECK(none.go<TestType>(in.view(), 2) == status::ok);
  prefill_run empty(planned(spec, {}, 8, 1, {{.final_slot = 0}, {}, {}}));
  REQUIRE(empty.go<TestType>(in.view(), 2) == status::ok);
  for (auto const& body : empty.bodies) CHECK(body.packed() == neutral.packed());
  CHECK(empty.state(0) == std::vector<float>(2 * 16 * 24, 0.0f));

  // Without data, too.
  prefill_run bare(planned(spec, {}, 8, 0, {{}}));
  CHECK(bare.go<TestType>({}) == status::ok);
  CHECK(bare.bodies[0].packed() == neutral.packed());
}

TEMPLATE_TEST_CASE("A segment of at most W tokens has an identity body and lies in its head", "[segment]", retnet, gla,
                   gated_deltanet, kda) {
  summary_data neutral(TestType::form, {1, 2, 16, 24});
  REQUIRE(set_identity<TestType>({1, 2, 16, 24}, neutral.view(), {}) == status::ok);
  for (std::int64_t const rows : {1, 7, 8}) {
    input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = rows, .seed = 173};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = rows, .final_slot = 0}}));
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    CHECK(run.bodies[0].packed() == neutral.packed());
    CHECK(same_bits(run.heads[0].packed(), in.rows.packed()));
    check_sequence(run, 0, in.view());
  }
}

TEMPLATE_TEST_CASE("Rows and outputs outside of the sequences are left alone", "[segment][case-07]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 200, .seed = 174};
  layer_inputs const full(spec);
  auto in = layer_inputs::blank(spec);
  std::vector<prefill_sequence> const sequences = {{.first_row = 3, .rows = 65}, {.first_row = 70, .rows = 1},
                                                   {.first_row = 80, .rows = 100}};
  for (auto const& s : sequences) copy_rows(full.view(), s.first_row, s.rows, in, s.first_row);
  prefill_run run(planned(spec, {}, 8, 0, sequences));
  REQUIRE(run.go<TestType>(in.view(), 2) == status::ok);
  for (std::size_t i = 0; i < 3; ++i) {
    check_sequence(run, i, in.view());
    CHECK(run.flags[i] == 0);
  }
  for (std::int64_t t = 0; t < 200; ++t) {
    bool const inside = (t >= 3 && t < 68) || t == 70 || (t >= 80 && t < 180);
    for (float const x : gather(run.o.view()[t])) REQUIRE(std::isnan(x) == !inside);
  }
}

TEMPLATE_TEST_CASE("Log decays of -1000 a step equal the recurrence, finite", "[segment][case-02]", retnet, gla,
                   gated_deltanet, kda) {
  for (auto const keys : {key_kind::random, key_kind::identical}) {
    input_spec const spec{.family = TestType::id, .dims = {1, 2, 16, 24}, .rows = 200, .keys = keys,
                          .gates = gate_kind::steep, .seed = 180};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = 200, .final_slot = 0}}));
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    INFO(spec.text());
    check_sequence(run, 0, in.view());
    CHECK(all_finite(run.o.packed()));
    CHECK(all_finite(run.state(0)));
    CHECK(all_finite(run.bodies[0].end_states.packed()));
    CHECK(run.flags[0] == 0);
    // The operator is zero, as a matrix or as the exponential of its logs.
    for (float const t : run.bodies[0].operators.packed()) {
      CHECK((TestType::form == operator_form::dense ? t : std::exp(t)) == 0.0f);
    }

    // Steep and flat steps side by side, in every channel at other tokens.
    auto const mixed = changed(in, [](tensor_view<float, 3>, rows_view rows) {
      std::mt19937_64 random(181);
      for_each_element(rows.gates, [&](float& x, std::int64_t) { x = random() % 4 == 0 ? -1000.0f : -0.001f; });
    });
    prefill_run again(planned(spec, {}, 8, 1, {{.rows = 200, .final_slot = 0}}));
    REQUIRE(again.go<TestType>(mixed.view()) == status::ok);
    check_sequence(again, 0, mixed.view());
    CHECK(all_finite(again.o.packed()));
  }
}

TEMPLATE_TEST_CASE("A log gate of minus infinity restarts the state at every position, without a NaN",
                   "[segment][case-03]", retnet, gla, gated_deltanet, kda) {
  std::int64_t const chunk = prefill_chunk(TestType::id);
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = chunk + 30, .gates = gate_kind::slow,
                        .seed = 190};
  layer_inputs const plain(spec);
  for (std::int64_t const at : telling_positions(8, chunk, spec.rows - 1)) {
    auto const in = changed(plain, [&](tensor_view<float, 3>, rows_view rows) {
      for_each_element(rows.gates[at], [](float& x, std::int64_t) { x = -infinity; });
    });
    prefill_run run(planned(spec, {}, 8, 2, {{.rows = spec.rows, .initial_slot = 1, .final_slot = 0}}));
    auto const initial = random_states(spec.dims, 191);
    run.set_state(1, initial);
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    INFO(spec.text() << ", reset at " << at);
    check_sequence(run, 0, in.view(), initial);
    CHECK(all_finite(run.o.packed()));
    CHECK(all_finite(run.state(0)));
    CHECK(run.flags[0] == 0);
    if (at >= 8) {
      for (float const t : run.bodies[0].operators.packed()) {
        CHECK((TestType::form == operator_form::dense ? t : std::exp(t)) == 0.0f);
      }
    }
  }
}

TEMPLATE_TEST_CASE("A reset of one channel clears that row alone", "[segment][case-03]", gla, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = 100, .gates = gate_kind::slow,
                        .betas = beta_kind::zero, .seed = 192};
  layer_inputs const plain(spec);
  for (float const steep : {-infinity, -1000.0f}) {
    auto const in = changed(plain, [&](tensor_view<float, 3>, rows_view rows) {
      rows.gates(60, 0, 5) = steep;
      // The rows write nothing, so that what is left of the initial state is seen.
      for_each_element(rows.v, [](float& x, std::int64_t) { x = 0.0f; });
    });
    prefill_run run(planned(spec, {}, 0, 2, {{.rows = 100, .initial_slot = 1, .final_slot = 0}}));
    auto const initial = random_states(spec.dims, 193);
    run.set_state(1, initial);
    REQUIRE(run.go<TestType>(in.view()) == status::ok);
    check_sequence(run, 0, in.view(), initial);
    for (std::int64_t i = 0; i < 16; ++i) {
      double sum = 0.0;
      for (std::int64_t t = 0; t < 100; ++t) sum += static_cast<double>(in.rows.view().gates(t, 0, i));
      for (std::int64_t j = 0; j < 24; ++j) {
        double const wanted = std::exp(sum) * static_cast<double>(initial[to_index(24 * i + j)]);
        CHECK(std::abs(static_cast<double>(run.states.view()(0, 0, i, j)) - wanted) <= 1e-6 * std::abs(wanted));
      }
    }
  }
}

TEMPLATE_TEST_CASE("A gate of -1000 or a reset before gates of -0.005 leaves the small ones exact", "[segment][case-03]",
                   retnet, gla, gated_deltanet, kda) {
  for (float const steep : {-1000.0f, -infinity}) {
    for (std::int64_t const at : {0, 5, 8, 20, 63, 64, 71, 72, 100}) {
      input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 4}, .rows = 140, .gates = gate_kind::mixed,
                            .betas = beta_kind::one, .seed = 194};
      layer_inputs const plain(spec);
      // The steep token stores ones under the first axis; nothing is stored after it, and that axis is read.
      auto const in = changed(plain, [&](tensor_view<float, 3> q, rows_view rows) {
        for_each_element(rows.gates[at], [&](float& x, std::int64_t) { x = steep; });
        for (std::int64_t i = 0; i < 16; ++i) rows.k(at, 0, i) = i == 0 ? 1.0f : 0.0f;
        for_each_element(rows.v[at], [](float& x, std::int64_t) { x = 1.0f; });
        for (std::int64_t t = at + 1; t < 140; ++t) {
          for_each_element(rows.gates[t], [](float& x, std::int64_t) { x = -0.005f; });
          for_each_element(rows.k[t], [](float& x, std::int64_t) { x = 0.0f; });
        }
        for_each_element(q, [](float& x, std::int64_t i) { x = i % 16 == 0 ? 1.0f : 0.0f; });
      });
      prefill_run run(planned(spec, {}, 8, 1, {{.rows = 140, .final_slot = 0}}));
      REQUIRE(run.go<TestType>(in.view()) == status::ok);
      CAPTURE(steep, at);
      check_sequence(run, 0, in.view());
      for (std::int64_t t = at; t < 140; ++t) {
        double const wanted = std::exp(static_cast<double>(-0.005f) * static_cast<double>(t - at));
        CHECK(std::abs(static_cast<double>(run.o.view()(t, 0, 0)) - wanted) <= 1e-6 * wanted);
      }
    }
  }
}

TEMPLATE_TEST_CASE("Later rows and later gates leave earlier outputs bitwise alone", "[segment][case-05]", retnet, gla,
                   gated_deltanet, kda) {
  std::int64_t const chunk = prefill_chunk(TestType::id);
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = chunk + 60, .gates = gate_kind::mixed,
                        .seed = 200};
  layer_inputs const in(spec);
  prefill_run whole(planned(spec, {}, 8, 0, {{.rows = spec.rows}}));
  REQUIRE(whole.go<TestType>(in.view()) == status::ok);
  for (std::int64_t const kept : telling_positions(8, chunk, spec.rows)) {
    std::int64_t const rest = spec.rows - kept;
    CAPTURE(kept);
    auto const wanted = gather(whole.o.view().rows(0, kept));
    for (float const gate : {0.0f, -1e-4f, -3.0f, -1000.0f, -infinity}) {
      auto const later = changed(in, [&](tensor_view<float, 3>, rows_view rows) {
        for_each_element(rows.gates.rows(kept, rest), [&](float& x, std::int64_t) { x = gate; });
      });
      prefill_run run(planned(spec, {}, 8, 0, {{.rows = spec.rows}}));
      REQUIRE(run.go<TestType>(later.view()) == status::ok);
      CHECK(same_bits(gather(run.o.view().rows(0, kept)), wanted));
    }
    auto const others = changed(in, [&](tensor_view<float, 3> q, rows_view rows) {
      for_each_element(q.rows(kept, rest), [](float& x, std::int64_t) { x *= -1e4f; });
      for_each_element(rows.k.rows(kept, rest), [](float& x, std::int64_t) { x = -x; });
      for_each_element(rows.v.rows(kept, rest), [](float& x, std::int64_t) { x *= 1e6f; });
    });
    prefill_run run(planned(spec, {}, 8, 0, {{.rows = spec.rows}}));
    REQUIRE(run.go<TestType>(others.view()) == status::ok);
    CHECK(same_bits(gather(run.o.view().rows(0, kept)), wanted));
    auto poisoned = layer_inputs::blank(spec);
    copy_rows(in.view(), 0, kept, poisoned, 0);
    REQUIRE(run.go<TestType>(poisoned.view()) == status::ok);
    CHECK(same_bits(gather(run.o.view().rows(0, kept)), wanted));
    prefill_run shorter(planned(spec, {}, 8, 0, {{.rows = kept}}));
    REQUIRE(shorter.go<TestType>(in.view()) == status::ok);
    CHECK(same_bits(shorter.outputs_of(0), wanted));
  }
}

TEMPLATE_TEST_CASE("Two hundred repeats of short and long tails give the same bits", "[segment][case-08]", retnet, gla,
                   gated_deltanet, kda) {
  std::vector<prefill_sequence> sequences;
  std::int64_t rows = 0;
  for (std::int64_t const length : {1, 15, 63, 65, 2065}) {
    sequences.push_back({.first_row = rows, .rows = length, .final_slot = static_cast<std::int32_t>(sequences.size())});
    rows += length;
  }
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 8, 8}, .rows = rows, .seed = 210};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 5, sequences);
  prefill_run first(plan);
  REQUIRE(first.go<TestType>(in.view(), 2) == status::ok);
  check_sequence(first, 4, in.view());
  for (int repeat = 0; repeat < 200; ++repeat) {
    prefill_run run(plan);
    REQUIRE(run.go<TestType>(in.view(), 2) == status::ok);
    for (std::size_t i = 0; i < 5; ++i) REQUIRE(same_bits(run.all_of(i), first.all_of(i)));
  }
}

TEMPLATE_TEST_CASE("beta is not rounded below fp32", "[segment][case-12]", gated_deltanet, kda) {
  // Betas that differ below bf16's last bit store values that differ as much.
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 4}, .rows = 64, .gates = gate_kind::zero,
                        .seed = 211};
  layer_inputs const plain(spec);
  auto const in = changed(plain, [](tensor_view<float, 3>, rows_view rows) {
    for_each_element(rows.beta, [](float& x, std::int64_t i) { x = 1.0f + 1e-6f * static_cast<float>(i); });
    for_each_element(rows.k, [](float& x, std::int64_t i) { x = i % 16 == (i / 16) % 16 ? 1.0f : 0.0f; });
    for_each_element(rows.v, [](float& x, std::int64_t) { x = 1.0f; });
  });
  prefill_run run(planned(spec, {}, 0, 1, {{.rows = 16, .final_slot = 0}}));
  REQUIRE(run.go<TestType>(in.view()) == status::ok);
  for (std::int64_t i = 0; i < 16; ++i) {
    CHECK(std::abs(run.states.view()(0, 0, i, 0) - (1.0f + 1e-6f * static_cast<float>(i))) <= 2e-7f);
  }
}

// Runs three sequences of which the second has something wrong in row 50, and gives its flags.
template <class F, class Damage>
std::uint32_t flags_of(Damage damage, row_options const& options = {}, std::int64_t row = 50) {
  input_spec const spec{.family = F::id, .dims = {2, 4, 16, 24}, .rows = 120, .gates = gate_kind::mixed, .seed = 220,
                        .space = options.gates};
  layer_inputs const right(spec);
  auto const in = changed(right, [&](tensor_view<float, 3> q, rows_view rows) {
    damage(q.rows(row, 1), rows.slice(row, 1));
  });
  auto const plan = planned(spec, options, 8, 3, {{.rows = 30, .final_slot = 0},
                                                  {.first_row = 30, .rows = 60, .final_slot = 1},
                                                  {.first_row = 90, .rows = 30, .final_slot = 2}});
  prefill_run clean(plan), run(plan);
  REQUIRE(clean.go<F>(right.view()) == status::ok);
  REQUIRE(run.go<F>(in.view(), 2) == status::ok);
  CHECK(clean.flags == std::vector<std::uint32_t>(3, 0));
  // The neighbours do not notice.
  CHECK(same_bits(run.all_of(0), clean.all_of(0)));
  CHECK(same_bits(run.all_of(2), clean.all_of(2)));
  return run.flags[1];
}

TEMPLATE_TEST_CASE("Gates out of range are flagged in every space", "[segment][case-06]", retnet, gla, gated_deltanet,
                   kda) {
  auto const gate = [](float value) {
    return [value](tensor_view<float, 3>, rows_view rows) { rows.gates(0, 3, rows.gates.extent[2] - 1) = value; };
  };
  for (auto const logs : {gate_space::natural_log, gate_space::log2}) {
    row_options const options{.gates = logs};
    CHECK(flags_of<TestType>(gate(1e-3f), options) == gate_out_of_range);
    CHECK(flags_of<TestType>(gate(0.98f), options) == gate_out_of_range);
    CHECK((flags_of<TestType>(gate(infinity), options) & gate_out_of_range) != 0);
    CHECK((flags_of<TestType>(gate(quiet_nan), options) & non_finite) != 0);
    CHECK(flags_of<TestType>(gate(0.0f), options) == 0);
    CHECK(flags_of<TestType>(gate(-0.0f), options) == 0);
    CHECK(flags_of<TestType>(gate(-infinity), options) == 0);
  }
  row_options const linear{.gates = gate_space::linear};
  CHECK(flags_of<TestType>(gate(1.001f), linear) == gate_out_of_range);
  CHECK(flags_of<TestType>(gate(-0.02f), linear) == gate_out_of_range);
  CHECK((flags_of<TestType>(gate(-infinity), linear) & gate_out_of_range) != 0);
  CHECK((flags_of<TestType>(gate(infinity), linear) & gate_out_of_range) != 0);
  CHECK((flags_of<TestType>(gate(quiet_nan), linear) & non_finite) != 0);
  CHECK(flags_of<TestType>(gate(0.0f), linear) == 0);
  CHECK(flags_of<TestType>(gate(1.0f), linear) == 0);
}

TEMPLATE_TEST_CASE("Linear gates under a log tag are flagged, and log gates under the linear tag",
                   "[segment][case-06]", retnet, gla, gated_deltanet, kda) {
  for (auto const given : {gate_space::linear, gate_space::natural_log}) {
    input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = 60, .seed = 221, .space = given};
    layer_inputs const in(spec);
    auto const wrong = given == gate_space::linear ? gate_space::natural_log : gate_space::linear;
    auto view = in.view();
    view.gates = wrong;
    prefill_run run(planned(spec, {.gates = wrong}, 8, 0, {{.rows = 60}}));
    REQUIRE(run.go<TestType>(view) == status::ok);
    CHECK((run.flags[0] & gate_out_of_range) != 0);
  }
}

TEMPLATE_TEST_CASE("NaNs and infinities in rows are flagged, wherever they stand", "[segment]", retnet, gla,
                   gated_deltanet, kda) {
  for (float const bad : {quiet_nan, infinity, -infinity}) {
    for (std::int64_t const row : {30, 37, 38, 89}) {
      CAPTURE(bad, row);
      CHECK((flags_of<TestType>([&](auto q, auto) { q(0, 1, 15) = bad; }, {}, row) & non_finite) != 0);
      CHECK((flags_of<TestType>([&](auto, auto rows) { rows.k(0, 1, 15) = bad; }, {}, row) & non_finite) != 0);
      CHECK((flags_of<TestType>([&](auto, auto rows) { rows.v(0, 3, 23) = bad; }, {}, row) & non_finite) != 0);
      if (TestType::delta_rule) {
        CHECK((flags_of<TestType>([&](auto, auto rows) { rows.beta(0, 3) = bad; }, {}, row) & non_finite) != 0);
      }
    }
  }
}

TEMPLATE_TEST_CASE("An update beyond 2 + 2^-6 is flagged as expansive for the delta rules alone", "[segment]", retnet,
                   gla, gated_deltanet, kda) {
  auto const scaled = [](float beta, float length) {
    return [=](tensor_view<float, 3>, rows_view rows) {
      if (!rows.beta.empty()) rows.beta(0, 2) = beta;
      for_each_element(rows.k, [&](float& x, std::int64_t) { x *= length; });
      if (!rows.beta.empty() && length > 1.0f) {
        for (std::int64_t const h : {0, 1, 3}) rows.beta(0, h) = 0.0f;
      }
    };
  };
  std::uint32_t const expected = TestType::delta_rule ? expansive_update : 0u;
  CHECK(flags_of<TestType>(scaled(2.0f, 1.0f)) == 0);
  CHECK(flags_of<TestType>(scaled(2.015f, 1.0f)) == 0);
  CHECK(flags_of<TestType>(scaled(2.017f, 1.0f)) == expected);
  CHECK(flags_of<TestType>(scaled(1.0f, 1.5f)) == expected);
  CHECK(flags_of<TestType>(scaled(1.0f, 1.4f)) == 0);
  // What counts is the key that the recurrence sees.
  CHECK(flags_of<TestType>(scaled(1.0f, 100.0f), {.l2_normalize = true}) == 0);
}

TEMPLATE_TEST_CASE("Flags are added to those that are there", "[segment]", retnet, gla, gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 24}, .rows = 20, .seed = 222};
  layer_inputs const right(spec);
  auto const in = changed(right, [](auto, auto rows) { rows.gates(4, 0, 0) = 1.0f; });
  prefill_run run(planned(spec, {}, 8, 0, {{.rows = 10}, {.first_row = 10, .rows = 10}}));
  run.flags = {1u << 30, 1u << 30};
  REQUIRE(run.go<TestType>(in.view()) == status::ok);
  CHECK(run.flags[0] == ((1u << 30) | gate_out_of_range));
  CHECK(run.flags[1] == 1u << 30);
}

TEMPLATE_TEST_CASE("Rows and slots past 2^31 elements equal a small rerun", "[segment][case-01]", retnet, gla,
                   gated_deltanet, kda) {
  input_spec const spec{.family = TestType::id, .dims = {1, 1, 16, 16}, .rows = 40, .gates = gate_kind::slow,
                        .seed = 230};
  layer_inputs const in(spec);
  prefill_run small(planned(spec, {}, 8, 2, {{.rows = 40, .initial_slot = 0, .final_slot = 1}}));
  auto const initial = random_states(spec.dims, 231);
  small.set_state(0, initial);
  REQUIRE(small.go<TestType>(in.view()) == status::ok);

  SECTION("in dense inputs of more than 2^31 elements") {
    constexpr std::int64_t rows = (std::int64_t{1} << 27) + 64;
    constexpr std::int64_t first = rows - 40;
    static_assert(first * 16 > std::int64_t{1} << 31);
    std::int64_t const gate_width = gate_elements<TestType>(16);
    sparse_floats const q(rows * 16), k(rows * 16), v(rows * 16), gates(rows * gate_width), beta(rows), o(rows * 16);
    rows_view big{dense_view(k.data(), rows, 1, 16), dense_view(v.data(), rows, 1, 16),
                  dense_view(gates.data(), rows, 1, gate_width),
                  TestType::delta_rule ? dense_view(beta.data(), rows, 1) : tensor_view<float, 2>{}};
    copy_rows(in.rows.view(), 0, 40, big, first);
    auto const big_q = dense_view(q.data(), rows, 1, 16);
    copy_elements(in.q.view(), big_q.rows(first, 40));
    auto const big_o = dense_view(o.data(), rows, 1, 16);

    auto big_spec = spec;
    big_spec.rows = rows;
    auto const plan = planned(big_spec, {}, 8, 2, {{.first_row = first, .rows = 40, .initial_slot = 0,
                                                    .final_slot = 1}});
    tensor<4> states({2, 1, 16, 16});
    copy_elements(small.states.view().rows(0, 1), states.view().rows(0, 1));
    summary_data body(TestType::form, spec.dims);
    auto body_view = body.view();
    lent_scratch memory(plan.workspace_bytes(1));
    REQUIRE(segment_prefill<TestType>(plan, {big_q, big, spec.space},
                                      {.o = big_o, .states = states.view(), .bodies = {&body_view, 1}},
                                      {.workspace = memory.span()}) == status::ok);
    CHECK(same_bits(gather(big_o.rows(first, 40)), small.o.packed()));
    CHECK(same_bits(states.packed(), small.states.packed()));
    CHECK(same_bits(body.packed(), small.bodies[0].packed()));
  }

  SECTION("in views whose strides reach past 2^31 elements") {
    constexpr std::int64_t stride = (std::int64_t{1} << 27) - 96;  // row 17 is past the limit
    sparse_floats const memory_of_rows(41 * stride), pool(6 * (std::int64_t{1} << 29));
    auto const at = [&](std::int64_t offset, std::int64_t width) {
      return tensor_view<float, 3>{memory_of_rows.data() + offset, {40, 1, width}, {stride, width, 1}};
    };
    rows_view big{at(64, 16), at(128, 16), at(192, gate_elements<TestType>(16)), {}};
    if (TestType::delta_rule) big.beta = {memory_of_rows.data() + 256, {40, 1}, {stride, 1}};
    copy_rows(in.rows.view(), 0, 40, big, 0);
    copy_elements(in.q.view(), at(0, 16));

    auto const plan = planned(spec, {}, 8, 6, {{.rows = 40, .initial_slot = 4, .final_slot = 5}});
    tensor_view<float, 4> const states{pool.data(), {6, 1, 16, 16}, {std::int64_t{1} << 29, 256, 16, 1}};
    for_each_element(states[4], [&](float& x, std::int64_t i) { x = initial[to_index(i)]; });
    lent_scratch memory(plan.workspace_bytes(1));
    REQUIRE(segment_prefill<TestType>(plan, {at(0, 16), big, spec.space}, {.o = at(320, 16), .states = states},
                                      {.workspace = memory.span()}) == status::ok);
    CHECK(same_bits(gather(at(320, 16)), small.o.packed()));
    CHECK(same_bits(gather(states[5]), small.state(1)));
  }
}

}  // namespace
