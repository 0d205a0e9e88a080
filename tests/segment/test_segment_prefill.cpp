// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/segment_prefill.hpp"

#include <catch2/catch.hpp>

#include <vector>

#include "segment/prefill_run.hpp"
#include "support/sparse_memory.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

TEST_CASE("Outputs, body and state equal the sequential recurrence for every input and W", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::uint64_t seed = 1;
  for (auto const& dims : {state_dims{1, 1, 16, 48}, state_dims{1, 1, 64, 32}, state_dims{1, 1, 128, 128},
                           state_dims{1, 2, 5, 3}, state_dims{1, 1, 33, 17}}) {
    for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical}) {
      for (auto const gates :
           {gate_kind::zero, gate_kind::slow, gate_kind::mixed, gate_kind::fast, gate_kind::steep, gate_kind::resets}) {
        ++seed;
        if (dims.key_dim > 33 && keys != key_kind::correlated) continue;  // the test of every length has them
        beta_kind const kinds[] = {beta_kind::uniform, beta_kind::two, beta_kind::one, beta_kind::zero};
        std::int32_t const heads_kept[] = {0, 1, 8, 16};
        input_spec const spec{.family = family,
                              .dims = dims,
                              .rows = dims.key_dim == 128 ? 150 : 200,
                              .keys = keys,
                              .gates = gates,
                              .betas = kinds[seed % 4],
                              .seed = seed};
        auto const head_rows = heads_kept[(seed / 4) % 4];
        INFO(spec.text() << ", W " << head_rows);
        layer_inputs const in(spec);
        prefill_run run(planned(spec, {.q_scale = 0.25f}, head_rows, 1, {{.rows = spec.rows, .final_slot = 0}}));
        REQUIRE(run.go(in.view()) == status::ok);
        check_sequence(run, 0, in.view());
        CHECK(run.flags[0] == 0);
      }
    }
  }
}

TEST_CASE("Lengths 1 to 130 equal the sequential recurrence with poison after the last row", "[segment][case-07]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  check_all_lengths({.family = family,
                     .dims = {1, 1, 16, 24},
                     .rows = 130,
                     .keys = key_kind::correlated,
                     .gates = gate_kind::mixed,
                     .seed = 30},
                    8);
  check_all_lengths({.family = family, .dims = {1, 1, 16, 16}, .rows = 130, .gates = gate_kind::resets, .seed = 31}, 0);
}

TEST_CASE("A state that a run starts from enters its outputs and its end, not its body", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const gates : {gate_kind::zero, gate_kind::mixed, gate_kind::resets}) {
    input_spec const spec{.family = family, .dims = {2, 2, 16, 24}, .rows = 150, .gates = gates, .seed = 40};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 2, {{.rows = 150, .initial_slot = 1, .final_slot = 0}}));
    auto const initial = random_states(spec.dims, 41);
    run.set_state(1, initial);
    REQUIRE(run.go(in.view()) == status::ok);
    INFO(spec.text());
    check_sequence(run, 0, in.view(), initial);
    CHECK(same_bits(run.state(1), initial));

    prefill_run from_zero(planned(spec, {}, 8, 2, {{.rows = 150}}));
    REQUIRE(from_zero.go(in.view()) == status::ok);
    CHECK(same_bits(from_zero.bodies[0].packed(), run.bodies[0].packed()));
  }
}

TEST_CASE("A run broken anywhere goes on, and bit for bit where the break lies on the grid", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::int64_t const chunk = prefill_chunk(family);
  REQUIRE(chunk > 0);
  for (std::int32_t const head_rows : {0, 1, 8, 16}) {
    input_spec const spec{.family = family,
                          .dims = {1, 1, 16, 24},
                          .rows = head_rows + (head_rows == 8 ? 2 : 1) * chunk + 11,
                          .gates = head_rows == 1 ? gate_kind::resets : gate_kind::mixed,
                          .seed = 50};
    layer_inputs const in(spec);
    prefill_run whole(planned(spec, {}, head_rows, 1, {{.rows = spec.rows, .final_slot = 0}}));
    REQUIRE(whole.go(in.view()) == status::ok);
    sequence_reference const wanted(whole.plan, 0, in.view());
    wanted.check(whole, 0);
    for (std::int64_t const at : telling_positions(head_rows, chunk, spec.rows)) {
      INFO(spec.text() << ", W " << head_rows << ", broken at " << at);
      prefill_run run(planned(spec, {}, head_rows, 1, {{.rows = at, .final_slot = 0}}));
      // One head for both calls: the second sees the rows that the first has written.
      rows_data head(family, spec.dims, head_rows);
      auto body = run.bodies[0].view();
      auto const step = [&](prefill_plan const& plan) {
        auto part = head.view().slice(
            0, std::min<std::int64_t>(head_rows, plan.sequences[0].position + plan.sequences[0].rows));
        lent_scratch memory(plan.workspace_bytes(1));
        return prefill(family, plan, in.view(),
                       {.o = run.o.view(),
                        .states = run.states.view(),
                        .bodies = {&body, 1},
                        .heads = {&part, 1},
                        .flags = run.flags},
                       {.workspace = memory.span()});
      };
      REQUIRE(step(run.plan) == status::ok);
      run.plan =
          planned(spec, {}, head_rows, 1,
                  {{.first_row = at, .rows = spec.rows - at, .position = at, .initial_slot = 0, .final_slot = 0}});
      REQUIRE(step(run.plan) == status::ok);

      run.plan = whole.plan;
      run.heads[0] = head;
      wanted.check(run, 0);
      if (at >= head_rows && (at - head_rows) % chunk == 0) CHECK(same_bits(run.all_of(0), whole.all_of(0)));
    }
  }
}

TEST_CASE("A run fed token by token ends where the recurrence does", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 1, 16, 24}, .rows = 100, .gates = gate_kind::mixed, .seed = 60};
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 1, {{.rows = 0, .final_slot = 0}}));
  rows_data head(family, spec.dims, 8);
  auto body = run.bodies[0].view();
  for (std::int64_t t = 0; t < spec.rows; ++t) {
    auto const plan = planned(
        spec, {}, 8, 1, {{.first_row = t, .rows = 1, .position = t, .initial_slot = t == 0 ? -1 : 0, .final_slot = 0}});
    auto part = head.view().slice(0, std::min<std::int64_t>(8, t + 1));
    lent_scratch memory(plan.workspace_bytes(1));
    REQUIRE(prefill(family, plan, in.view(),
                    {.o = run.o.view(), .states = run.states.view(), .bodies = {&body, 1}, .heads = {&part, 1}},
                    {.workspace = memory.span()}) == status::ok);
  }
  run.plan = planned(spec, {}, 8, 1, {{.rows = spec.rows, .final_slot = 0}});
  run.heads[0] = head;
  check_sequence(run, 0, in.view());
}

TEST_CASE("One, two, three and four value heads share a key head, and a non-multiple is refused",
          "[segment][case-11]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (std::int32_t const ratio : {1, 2, 3, 4}) {
    input_spec const spec{
        .family = family, .dims = {2, 2 * ratio, 16, 24}, .rows = 100, .gates = gate_kind::mixed, .seed = 70};
    INFO(spec.text());
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = 100, .final_slot = 0}}));
    REQUIRE(run.go(in.view()) == status::ok);
    check_sequence(run, 0, in.view());
  }
  for (auto const& dims : {state_dims{2, 3, 16, 16}, state_dims{4, 2, 16, 16}, state_dims{1, 1, 0, 16}}) {
    CHECK(plan_segment_prefill(family, dims, {}, 8, 10, 0, {{.rows = 10}}).error() == status::invalid_shape);
  }
}

TEST_CASE("Gaps in the strides of every input and output are neither read nor written", "[segment][case-11]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (std::int32_t const ratio : {1, 3}) {
    input_spec spec{
        .family = family, .dims = {2, 2 * ratio, 16, 24}, .rows = 100, .gates = gate_kind::mixed, .seed = 80};
    layer_inputs const dense(spec);
    spec.how = layout::gaps;
    layer_inputs const gaps(spec);
    auto const plan = planned(spec, {}, 8, 2, {{.rows = 100, .initial_slot = 0, .final_slot = 1}});
    prefill_run straight(plan), strided(plan, layout::gaps, layout::gaps);
    for (auto* run : {&straight, &strided}) run->set_state(0, random_states(spec.dims, 81));
    REQUIRE(straight.go(dense.view()) == status::ok);
    REQUIRE(strided.go(gaps.view()) == status::ok);
    CHECK(same_bits(straight.all_of(0), strided.all_of(0)));
    CHECK(strided.o.gaps_intact());
    CHECK(strided.states.gaps_intact());
    CHECK(strided.bodies[0].gaps_intact());
    CHECK(strided.heads[0].gaps_intact());
    check_sequence(strided, 0, gaps.view(), random_states(spec.dims, 81));
  }
}

TEST_CASE("A pool of transposed states holds the same numbers", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 90, .gates = gate_kind::slow, .seed = 90};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 3, {{.rows = 90, .initial_slot = 2, .final_slot = 1}});
  prefill_run straight(plan), turned(plan, layout::dense, layout::transposed);
  REQUIRE(turned.states.view().stride[2] == 1);
  for (auto* run : {&straight, &turned}) run->set_state(2, random_states(spec.dims, 91));
  REQUIRE(straight.go(in.view()) == status::ok);
  REQUIRE(turned.go(in.view()) == status::ok);
  CHECK(same_bits(straight.all_of(0), turned.all_of(0)));
  CHECK(turned.states.gaps_intact());
}

TEST_CASE("A plan of another family is refused", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const other : {family_id::retnet, family_id::gla, family_id::gated_deltanet, family_id::kda}) {
    if (other == family) continue;
    input_spec const spec{.family = other, .dims = {1, 1, 16, 16}, .rows = 10, .seed = 102};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 0, {{.rows = 10}}));
    CHECK(run.go_as(family, in.view()) == status::invalid_argument);
  }
}

TEST_CASE("Queries and keys are normalised inside, and heads keep the keys as given", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (float const epsilon : {1e-6f, 0.5f}) {
    input_spec const spec{
        .family = family, .dims = {2, 4, 16, 24}, .rows = 100, .gates = gate_kind::mixed, .seed = 110};
    layer_inputs const unit(spec);
    auto const in = changed(unit, [](tensor_view<float, 3>, rows_view rows) {
      for_each_element(rows.k, [](float& x, std::int64_t i) { x *= 0.01f + static_cast<float>(i % 700); });
      for (std::int64_t i = 0; i < 16; ++i) rows.k(50, 0, i) = 0.0f;
    });
    prefill_run run(planned(spec, {.q_scale = 0.5f, .l2_normalize = true, .l2_epsilon = epsilon}, 8, 1,
                            {{.rows = 100, .final_slot = 0}}));
    REQUIRE(run.go(in.view()) == status::ok);
    INFO(spec.text() << ", epsilon " << epsilon);
    check_sequence(run, 0, in.view());
    CHECK(run.flags[0] == 0);
  }
}

TEST_CASE("A constant decay is a gate view whose token stride is zero", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {2, 4, 16, 24}, .rows = 100, .gates = gate_kind::mixed, .seed = 120};
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
  REQUIRE(written_out.go(repeated.view()) == status::ok);
  REQUIRE(strided.go(constant) == status::ok);
  CHECK(same_bits(written_out.all_of(0), strided.all_of(0)));
  check_sequence(strided, 0, constant);
}

TEST_CASE("A slot of -1 is skipped and slots outside of the pool are refused", "[segment][case-14]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 1, 16, 16}, .rows = 20, .seed = 130};
  auto const plan = [&](std::int32_t initial, std::int32_t final, std::int64_t slots) {
    return plan_segment_prefill(spec.family, spec.dims, {}, 8, 20, slots,
                                {{.rows = 20, .initial_slot = initial, .final_slot = final}})
        .error();
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
  REQUIRE(run.go(in.view()) == status::ok);
  check_sequence(run, 0, in.view());
  for (float const x : run.states.packed()) CHECK(std::isnan(x));
}

TEST_CASE("Only the final slots of a pool are written, in place too", "[segment][case-14]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 150, .seed = 131};
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 4,
                          {{.rows = 70, .initial_slot = 2, .final_slot = 2},
                           {.first_row = 70, .rows = 80, .initial_slot = 3, .final_slot = 1}}));
  auto const second = random_states(spec.dims, 132), third = random_states(spec.dims, 133);
  run.set_state(2, second);
  run.set_state(3, third);
  REQUIRE(run.go(in.view(), 2) == status::ok);
  INFO(spec.text());
  check_sequence(run, 0, in.view(), second);
  check_sequence(run, 1, in.view(), third);
  CHECK(same_bits(run.state(3), third));
  for (float const x : run.state(0)) CHECK(std::isnan(x));
}

TEST_CASE("One and two threads give the same bits", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {2, 4, 16, 24}, .rows = 400, .seed = 140};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 3,
                            {{.rows = 300, .final_slot = 0},
                             {.first_row = 300, .rows = 5, .final_slot = 1},
                             {.first_row = 305, .rows = 95, .final_slot = 2}});
  prefill_run one(plan), two(plan), three(plan);
  REQUIRE(one.go(in.view(), 1) == status::ok);
  REQUIRE(two.go(in.view(), 2) == status::ok);
  REQUIRE(three.go(in.view(), 3) == status::ok);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(same_bits(one.all_of(i), two.all_of(i)));
    CHECK(same_bits(one.all_of(i), three.all_of(i)));
  }
}

// Slow decay: with a fast one, leaks between sequences hide.
TEST_CASE("A sequence gives the same bits alone and in batches of 2, 7 and 64", "[segment][case-15]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const gates : {gate_kind::slow, gate_kind::zero}) {
    for (std::int64_t const own : {5, 8, 9, 70, 150}) {
      for (std::int64_t const count : {2, 7, 64}) {
        for (bool const last : {false, true}) {
          std::int64_t const others = 37 * (count - 1);
          input_spec const spec{
              .family = family, .dims = {1, 2, 16, 24}, .rows = own + others, .gates = gates, .seed = 150};
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
            sequences.push_back(
                {.first_row = (last ? 0 : own) + 37 * (i - 1), .rows = 37, .final_slot = static_cast<std::int32_t>(i)});
          }
          if (last) sequences.push_back({.first_row = at, .rows = own, .final_slot = 0});
          prefill_run alone(planned(alone_spec, {}, 8, 1, {{.rows = own, .final_slot = 0}}));
          prefill_run batch(planned(spec, {}, 8, count, sequences));
          REQUIRE(alone.go(alone_in.view()) == status::ok);
          REQUIRE(batch.go(in.view(), 2) == status::ok);
          INFO(spec.text() << ", own " << own << ", batch " << count << ", last " << last);
          CHECK(same_bits(alone.all_of(0), batch.all_of(last ? to_index(count - 1) : 0)));
        }
      }
    }
  }
}

TEST_CASE("Dirty scratch at any alignment and of exactly the planned size does not show", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 3, 16, 24}, .rows = 200, .seed = 160};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 150, .final_slot = 0}, {.first_row = 150, .rows = 50}});
  prefill_run reference(plan);
  REQUIRE(reference.go(in.view(), 1, 0) == status::ok);
  for (std::size_t const misalignment : {1u, 2u, 4u, 31u, 63u}) {
    for (int const threads : {1, 2}) {
      prefill_run run(plan);
      REQUIRE(run.go(in.view(), threads, misalignment) == status::ok);
      CHECK(same_bits(run.all_of(0), reference.all_of(0)));
      CHECK(same_bits(run.all_of(1), reference.all_of(1)));
    }
  }
}

TEST_CASE("Scratch that is a byte too small is refused, and nothing is written", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 50, .seed = 161};
  layer_inputs const in(spec);
  for (int const threads : {1, 2}) {
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = 50, .final_slot = 0}}));
    std::int64_t const bytes = run.plan.workspace_bytes(threads);
    REQUIRE(bytes > 0);
    lent_scratch memory(bytes - 1);
    CHECK(prefill(family, run.plan, in.view(), {.o = run.o.view(), .states = run.states.view()},
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

TEST_CASE("Every output may be left out without changing the others", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 100, .seed = 162};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 100, .final_slot = 0}});
  prefill_run all(plan);
  REQUIRE(all.go(in.view()) == status::ok);
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
    REQUIRE(prefill(family, run.plan, in.view(), out, {.workspace = memory.span()}) == status::ok);
    if ((wanted & 1u) != 0) CHECK(same_bits(run.o.packed(), all.o.packed()));
    if ((wanted & 2u) != 0) CHECK(same_bits(run.bodies[0].packed(), all.bodies[0].packed()));
    if ((wanted & 4u) != 0) CHECK(same_bits(run.heads[0].packed(), all.heads[0].packed()));
    if ((wanted & 8u) != 0) CHECK(same_bits(run.states.packed(), all.states.packed()));
  }
}

TEST_CASE("A sequence's empty body and head are not made, and change nothing of the others", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 80, .seed = 164};
  layer_inputs const in(spec);
  // The first is no longer than W: its record has no body.
  auto const plan = planned(spec, {}, 8, 0, {{.rows = 5}, {.first_row = 5, .rows = 40}, {.first_row = 45, .rows = 35}});
  prefill_run all(plan);
  REQUIRE(all.go(in.view()) == status::ok);
  prefill_run some(plan);
  std::vector<summary_view> const bodies{{}, some.bodies[1].view(), {}};
  std::vector<rows_view> const heads{some.heads[0].view(), {}, some.heads[2].view()};
  lent_scratch memory(plan.workspace_bytes(1));
  REQUIRE(prefill(family, plan, in.view(), {.o = some.o.view(), .bodies = bodies, .heads = heads, .flags = some.flags},
                  {.workspace = memory.span()}) == status::ok);
  CHECK(same_bits(some.o.packed(), all.o.packed()));
  CHECK(same_bits(some.bodies[1].packed(), all.bodies[1].packed()));
  for (std::size_t const which : {0u, 2u}) CHECK(same_bits(some.heads[which].packed(), all.heads[which].packed()));
}

TEST_CASE("Inputs and outputs of other shapes are refused, and nothing is written", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {2, 4, 16, 24}, .rows = 50, .seed = 163};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 1, {{.rows = 50, .final_slot = 0}});

  auto const refuses = [&](char const* what, auto damage) {
    INFO(what);
    prefill_run run(plan);
    auto view = in.view();
    auto body = run.bodies[0].view();
    auto head = run.heads[0].view();
    prefill_outputs out{
        .o = run.o.view(), .states = run.states.view(), .bodies = {&body, 1}, .heads = {&head, 1}, .flags = run.flags};
    damage(view, out, body, head);
    lent_scratch memory(plan.workspace_bytes(1));
    CHECK(prefill(family, plan, view, out, {.workspace = memory.span()}) == status::invalid_shape);
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
  if (is_delta_rule(family)) {
    refuses("beta missing", [](auto& view, auto&, auto&, auto&) { view.rows.beta = {}; });
    refuses("beta heads", [](auto& view, auto&, auto&, auto&) { view.rows.beta.extent[1] = 2; });
  }
  refuses("o rows", [](auto&, auto& out, auto&, auto&) { out.o.extent[0] = 49; });
  refuses("o dim", [](auto&, auto& out, auto&, auto&) { out.o.extent[2] = 16; });
  refuses("states missing", [](auto&, auto& out, auto&, auto&) { out.states = {}; });
  refuses("states slots", [](auto&, auto& out, auto&, auto&) { out.states.extent[0] = 0; });
  refuses("states heads", [](auto&, auto& out, auto&, auto&) { out.states.extent[1] = 2; });
  refuses("states swapped",
          [](auto&, auto& out, auto&, auto&) { std::swap(out.states.extent[2], out.states.extent[3]); });
  refuses("body operator", [](auto&, auto&, auto& body, auto&) { body.operators.extent[1] += 1; });
  refuses("body state", [](auto&, auto&, auto& body, auto&) { body.end_states.extent[2] = 16; });
  refuses("head rows", [](auto&, auto&, auto&, auto& head) { head = head.slice(0, 7); });
  refuses("o of one row", [](auto&, auto& out, auto&, auto&) { out.o.stride[0] = 0; });
  refuses("states of one slot's head", [](auto&, auto& out, auto&, auto&) { out.states.stride[1] = 0; });
  refuses("flags", [](auto&, auto& out, auto&, auto&) {
    static std::uint32_t two[2] = {0, 0};
    out.flags = two;
  });
}

TEST_CASE("Outputs that start where an input does, and rows that two sequences write, are refused", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {2, 2, 16, 16}, .rows = 20, .seed = 164};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 4, 0, {{.rows = 20}});
  lent_scratch memory(plan.workspace_bytes(1));
  for (bool const values : {false, true}) {
    auto view = in.view();
    tensor<3> both({20, 2, 16});
    both.fill(1.0f);
    (values ? view.rows.v : view.q) = both.view();
    CHECK(prefill(family, plan, view, {.o = both.view()}, {.workspace = memory.span()}) == status::invalid_shape);
    CHECK(gather(both.view()) == std::vector<float>(20 * 2 * 16, 1.0f));
  }

  // In an order of their own; without outputs nothing is written twice.
  prefill_run twice(planned(spec, {}, 4, 0, {{.first_row = 10, .rows = 10}, {.rows = 11}}));
  CHECK(twice.go(in.view()) == status::invalid_shape);
  lent_scratch room(twice.plan.workspace_bytes(1));
  CHECK(prefill(family, twice.plan, in.view(), {}, {.workspace = room.span()}) == status::ok);
}

TEST_CASE("Options that are not finite and dimensions whose sizes leave 64 bits are refused", "[segment]") {
  auto const outcome = [](state_dims const& dims, row_options const& options) {
    return plan_segment_prefill(family_id::kda, dims, options, 0, 0, 0, {}).error();
  };
  state_dims const small{1, 1, 16, 16};
  for (float const bad : {quiet_nan, infinity, -infinity}) {
    CHECK(outcome(small, {.q_scale = bad}) == status::invalid_argument);
    CHECK(outcome(small, {.l2_epsilon = bad}) == status::invalid_argument);
  }
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  CHECK(outcome({1, 1, most, 1}, {}) == status::invalid_shape);
  CHECK(outcome({1, 1, 1, most}, {}) == status::invalid_shape);
  auto const largest = plan_segment_prefill(family_id::kda, {1, 1, 1 << 20, 1 << 20}, {}, 0, 0, 0, {});
  REQUIRE(largest);
  CHECK(largest->workspace_bytes(most) > largest->workspace_bytes(1));
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
  CHECK(*right == std::vector<prefill_sequence>{
                      {.first_row = 0, .rows = 3}, {.first_row = 3, .rows = 0}, {.first_row = 3, .rows = 7}});
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

TEST_CASE("Zero-length sequences are the identity, alone and between others", "[segment][case-10]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 60, .seed = 170};
  layer_inputs const in(spec);
  auto const neutral = neutral_summary(family, spec.dims);
  for (std::int32_t const head_rows : {0, 8}) {
    prefill_run run(planned(spec, {}, head_rows, 5,
                            {{.first_row = 0, .rows = 0, .initial_slot = 0, .final_slot = 1},
                             {.first_row = 0, .rows = 60, .initial_slot = -1, .final_slot = 2},
                             {.first_row = 60, .rows = 0, .initial_slot = -1, .final_slot = 3},
                             {.first_row = 30, .rows = 0, .initial_slot = 4, .final_slot = 4}}));
    auto const initial = random_states(spec.dims, 171);
    run.set_state(0, initial);
    run.set_state(4, initial);
    REQUIRE(run.go(in.view(), 2) == status::ok);
    for (std::size_t const which : {0u, 2u, 3u}) CHECK(run.bodies[which].packed() == neutral.packed());
    CHECK(same_bits(run.state(1), initial));
    CHECK(same_bits(run.state(4), initial));
    CHECK(run.state(3) == std::vector<float>(initial.size(), 0.0f));
    CHECK(run.flags == std::vector<std::uint32_t>(4, 0));
    check_sequence(run, 1, in.view());
  }
}

TEST_CASE("A batch without rows or without sequences returns", "[segment][case-10]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 0, .seed = 172};
  layer_inputs const in(spec);
  auto const neutral = neutral_summary(family, spec.dims);
  prefill_run none(planned(spec, {}, 8, 0, {}));
  CHECK(none.go(in.view(), 2) == status::ok);
  prefill_run empty(planned(spec, {}, 8, 1, {{.final_slot = 0}, {}, {}}));
  REQUIRE(empty.go(in.view(), 2) == status::ok);
  for (auto const& body : empty.bodies) CHECK(body.packed() == neutral.packed());
  CHECK(empty.state(0) == std::vector<float>(2 * 16 * 24, 0.0f));

  // Without data, too.
  prefill_run bare(planned(spec, {}, 8, 0, {{}}));
  CHECK(bare.go({}) == status::ok);
  CHECK(bare.bodies[0].packed() == neutral.packed());
}

TEST_CASE("A segment of at most W tokens has an identity body and lies in its head", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  auto const neutral = neutral_summary(family, state_dims{1, 2, 16, 24});
  for (std::int64_t const rows : {1, 7, 8}) {
    input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = rows, .seed = 173};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = rows, .final_slot = 0}}));
    REQUIRE(run.go(in.view()) == status::ok);
    CHECK(run.bodies[0].packed() == neutral.packed());
    CHECK(same_bits(run.heads[0].packed(), in.rows.packed()));
    check_sequence(run, 0, in.view());
  }
}

TEST_CASE("Rows and outputs outside of the sequences are left alone", "[segment][case-07]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 2, 16, 24}, .rows = 200, .seed = 174};
  layer_inputs const full(spec);
  auto in = layer_inputs::blank(spec);
  std::vector<prefill_sequence> const sequences = {
      {.first_row = 3, .rows = 65}, {.first_row = 70, .rows = 1}, {.first_row = 80, .rows = 100}};
  for (auto const& s : sequences) copy_rows(full.view(), s.first_row, s.rows, in, s.first_row);
  prefill_run run(planned(spec, {}, 8, 0, sequences));
  REQUIRE(run.go(in.view(), 2) == status::ok);
  for (std::size_t i = 0; i < 3; ++i) {
    check_sequence(run, i, in.view());
    CHECK(run.flags[i] == 0);
  }
  for (std::int64_t t = 0; t < 200; ++t) {
    bool const inside = (t >= 3 && t < 68) || t == 70 || (t >= 80 && t < 180);
    for (float const x : gather(run.o.view()[t])) REQUIRE(std::isnan(x) == !inside);
  }
}

TEST_CASE("Two hundred repeats of short and long tails give the same bits", "[segment][case-08]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::vector<prefill_sequence> sequences;
  std::int64_t rows = 0;
  for (std::int64_t const length : {1, 15, 63, 65, 2065}) {
    sequences.push_back({.first_row = rows, .rows = length, .final_slot = static_cast<std::int32_t>(sequences.size())});
    rows += length;
  }
  input_spec const spec{.family = family, .dims = {1, 1, 8, 8}, .rows = rows, .seed = 210};
  layer_inputs const in(spec);
  auto const plan = planned(spec, {}, 8, 5, sequences);
  prefill_run first(plan);
  REQUIRE(first.go(in.view(), 2) == status::ok);
  check_sequence(first, 4, in.view());
  for (int repeat = 0; repeat < 200; ++repeat) {
    prefill_run run(plan);
    REQUIRE(run.go(in.view(), 2) == status::ok);
    for (std::size_t i = 0; i < 5; ++i) REQUIRE(same_bits(run.all_of(i), first.all_of(i)));
  }
}

TEST_CASE("Rows and slots past 2^31 elements equal a small rerun", "[segment][case-01]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 1, 16, 16}, .rows = 40, .gates = gate_kind::slow, .seed = 230};
  layer_inputs const in(spec);
  prefill_run small(planned(spec, {}, 8, 2, {{.rows = 40, .initial_slot = 0, .final_slot = 1}}));
  auto const initial = random_states(spec.dims, 231);
  small.set_state(0, initial);
  REQUIRE(small.go(in.view()) == status::ok);

  SECTION("in dense inputs of more than 2^31 elements") {
    constexpr std::int64_t rows = (std::int64_t{1} << 27) + 64;
    constexpr std::int64_t first = rows - 40;
    static_assert(first * 16 > std::int64_t{1} << 31);
    std::int64_t const width = gate_width(family, 16);
    sparse_floats const q(rows * 16), k(rows * 16), v(rows * 16), gates(rows * width), beta(rows), o(rows * 16);
    rows_view big{dense_view(k.data(), rows, 1, 16), dense_view(v.data(), rows, 1, 16),
                  dense_view(gates.data(), rows, 1, width),
                  is_delta_rule(family) ? dense_view(beta.data(), rows, 1) : tensor_view<float, 2>{}};
    copy_rows(in.rows.view(), 0, 40, big, first);
    auto const big_q = dense_view(q.data(), rows, 1, 16);
    copy_elements(in.q.view(), big_q.rows(first, 40));
    auto const big_o = dense_view(o.data(), rows, 1, 16);

    auto big_spec = spec;
    big_spec.rows = rows;
    auto const plan =
        planned(big_spec, {}, 8, 2, {{.first_row = first, .rows = 40, .initial_slot = 0, .final_slot = 1}});
    tensor<4> states({2, 1, 16, 16});
    copy_elements(small.states.view().rows(0, 1), states.view().rows(0, 1));
    summary_data body(form_of(family), spec.dims);
    auto body_view = body.view();
    lent_scratch memory(plan.workspace_bytes(1));
    REQUIRE(prefill(family, plan, {big_q, big, spec.space},
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
    rows_view big{at(64, 16), at(128, 16), at(192, gate_width(family, 16)), {}};
    if (is_delta_rule(family)) big.beta = {memory_of_rows.data() + 256, {40, 1}, {stride, 1}};
    copy_rows(in.rows.view(), 0, 40, big, 0);
    copy_elements(in.q.view(), at(0, 16));

    auto const plan = planned(spec, {}, 8, 6, {{.rows = 40, .initial_slot = 4, .final_slot = 5}});
    tensor_view<float, 4> const states{pool.data(), {6, 1, 16, 16}, {std::int64_t{1} << 29, 256, 16, 1}};
    for_each_element(states[4], [&](float& x, std::int64_t i) { x = initial[to_index(i)]; });
    lent_scratch memory(plan.workspace_bytes(1));
    REQUIRE(prefill(family, plan, {at(0, 16), big, spec.space}, {.o = at(320, 16), .states = states},
                    {.workspace = memory.span()}) == status::ok);
    CHECK(same_bits(gather(at(320, 16)), small.o.packed()));
    CHECK(same_bits(gather(states[5]), small.state(1)));
  }
}

}  // namespace
