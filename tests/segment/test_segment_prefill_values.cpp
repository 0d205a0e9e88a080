// SPDX-License-Identifier: Apache-2.0
// segment_prefill under the values that break kernels: steep and infinite gates, other gate spaces, poison, bad values.
#include "hypic/segment/segment_prefill.hpp"

#include <catch2/catch.hpp>

#include <vector>

#include "segment/prefill_run.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

TEST_CASE("Gates in natural logs, base-2 logs and linear space mean the same decays", "[segment][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const space : {gate_space::natural_log, gate_space::log2, gate_space::linear}) {
    for (auto const gates : {gate_kind::slow, gate_kind::mixed, gate_kind::fast, gate_kind::resets}) {
      input_spec const spec{
          .family = family, .dims = {1, 1, 16, 24}, .rows = 120, .gates = gates, .seed = 100, .space = space};
      INFO(spec.text() << ", space " << static_cast<int>(space));
      layer_inputs const in(spec);
      prefill_run run(planned(spec, {.gates = space}, 8, 1, {{.rows = 120, .final_slot = 0}}));
      REQUIRE(run.go(in.view()) == status::ok);
      check_sequence(run, 0, in.view());
      CHECK(run.flags[0] == 0);
    }
  }
}

TEST_CASE("A gate tag that differs from the plan's is refused", "[segment][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  gate_space const spaces[] = {gate_space::natural_log, gate_space::log2, gate_space::linear};
  for (auto const of_plan : spaces) {
    for (auto const of_call : spaces) {
      input_spec const spec{.family = family, .dims = {1, 1, 16, 16}, .rows = 10, .seed = 101, .space = of_call};
      layer_inputs const in(spec);
      prefill_run run(planned(spec, {.gates = of_plan}, 8, 0, {{.rows = 10}}));
      CHECK(run.go(in.view()) == (of_plan == of_call ? status::ok : status::invalid_argument));
    }
  }
}

TEST_CASE("Log decays of -1000 a step equal the recurrence, finite", "[segment][case-02]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const keys : {key_kind::random, key_kind::identical}) {
    input_spec const spec{
        .family = family, .dims = {1, 2, 16, 24}, .rows = 200, .keys = keys, .gates = gate_kind::steep, .seed = 180};
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 8, 1, {{.rows = 200, .final_slot = 0}}));
    REQUIRE(run.go(in.view()) == status::ok);
    INFO(spec.text());
    check_sequence(run, 0, in.view());
    CHECK(all_finite(run.o.packed()));
    CHECK(all_finite(run.state(0)));
    CHECK(all_finite(run.bodies[0].end_states.packed()));
    CHECK(run.flags[0] == 0);
    // The operator is zero, as a matrix or as the exponential of its logs.
    for (float const t : run.bodies[0].operators.packed()) {
      CHECK((form_of(family) == operator_form::dense ? t : std::exp(t)) == 0.0f);
    }

    // Steep and flat steps side by side, in every channel at other tokens.
    auto const mixed = changed(in, [](tensor_view<float, 3>, rows_view rows) {
      std::mt19937_64 random(181);
      for_each_element(rows.gates, [&](float& x, std::int64_t) { x = random() % 4 == 0 ? -1000.0f : -0.001f; });
    });
    prefill_run again(planned(spec, {}, 8, 1, {{.rows = 200, .final_slot = 0}}));
    REQUIRE(again.go(mixed.view()) == status::ok);
    check_sequence(again, 0, mixed.view());
    CHECK(all_finite(again.o.packed()));
  }
}

TEST_CASE("A log gate of minus infinity restarts the state at every position, without a NaN", "[segment][case-03]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::int64_t const chunk = prefill_chunk(family);
  input_spec const spec{
      .family = family, .dims = {1, 1, 16, 24}, .rows = chunk + 30, .gates = gate_kind::slow, .seed = 190};
  layer_inputs const plain(spec);
  for (std::int64_t const at : telling_positions(8, chunk, spec.rows - 1)) {
    auto const in = changed(plain, [&](tensor_view<float, 3>, rows_view rows) {
      for_each_element(rows.gates[at], [](float& x, std::int64_t) { x = -infinity; });
    });
    prefill_run run(planned(spec, {}, 8, 2, {{.rows = spec.rows, .initial_slot = 1, .final_slot = 0}}));
    auto const initial = random_states(spec.dims, 191);
    run.set_state(1, initial);
    REQUIRE(run.go(in.view()) == status::ok);
    INFO(spec.text() << ", reset at " << at);
    check_sequence(run, 0, in.view(), initial);
    CHECK(all_finite(run.o.packed()));
    CHECK(all_finite(run.state(0)));
    CHECK(run.flags[0] == 0);
    if (at >= 8) {
      for (float const t : run.bodies[0].operators.packed()) {
        CHECK((form_of(family) == operator_form::dense ? t : std::exp(t)) == 0.0f);
      }
    }
  }
}

TEST_CASE("A reset of one channel clears that row alone", "[segment][case-03]") {
  auto const family = GENERATE(family_id::gla, family_id::kda);
  CAPTURE(name(family));
  input_spec const spec{.family = family,
                        .dims = {1, 1, 16, 24},
                        .rows = 100,
                        .gates = gate_kind::slow,
                        .betas = beta_kind::zero,
                        .seed = 192};
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
    REQUIRE(run.go(in.view()) == status::ok);
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

TEST_CASE("A gate of -1000 or a reset before gates of -0.005 leaves the small ones exact", "[segment][case-03]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (float const steep : {-1000.0f, -infinity}) {
    for (std::int64_t const at : {0, 5, 8, 20, 63, 64, 71, 72, 100}) {
      input_spec const spec{.family = family,
                            .dims = {1, 1, 16, 4},
                            .rows = 140,
                            .gates = gate_kind::mixed,
                            .betas = beta_kind::one,
                            .seed = 194};
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
      REQUIRE(run.go(in.view()) == status::ok);
      CAPTURE(steep, at);
      check_sequence(run, 0, in.view());
      for (std::int64_t t = at; t < 140; ++t) {
        double const wanted = std::exp(static_cast<double>(-0.005f) * static_cast<double>(t - at));
        CHECK(std::abs(static_cast<double>(run.o.view()(t, 0, 0)) - wanted) <= 1e-6 * wanted);
      }
    }
  }
}

TEST_CASE("Later rows and later gates leave earlier outputs bitwise alone", "[segment][case-05]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::int64_t const chunk = prefill_chunk(family);
  input_spec const spec{
      .family = family, .dims = {1, 1, 16, 24}, .rows = chunk + 60, .gates = gate_kind::mixed, .seed = 200};
  layer_inputs const in(spec);
  prefill_run whole(planned(spec, {}, 8, 0, {{.rows = spec.rows}}));
  REQUIRE(whole.go(in.view()) == status::ok);
  for (std::int64_t const kept : telling_positions(8, chunk, spec.rows)) {
    std::int64_t const rest = spec.rows - kept;
    CAPTURE(kept);
    auto const wanted = gather(whole.o.view().rows(0, kept));
    for (float const gate : {0.0f, -1000.0f, -infinity}) {
      auto const later = changed(in, [&](tensor_view<float, 3>, rows_view rows) {
        for_each_element(rows.gates.rows(kept, rest), [&](float& x, std::int64_t) { x = gate; });
      });
      prefill_run run(planned(spec, {}, 8, 0, {{.rows = spec.rows}}));
      REQUIRE(run.go(later.view()) == status::ok);
      CHECK(same_bits(gather(run.o.view().rows(0, kept)), wanted));
    }
    auto const others = changed(in, [&](tensor_view<float, 3> q, rows_view rows) {
      for_each_element(q.rows(kept, rest), [](float& x, std::int64_t) { x *= -1e4f; });
      for_each_element(rows.k.rows(kept, rest), [](float& x, std::int64_t) { x = -x; });
      for_each_element(rows.v.rows(kept, rest), [](float& x, std::int64_t) { x *= 1e6f; });
    });
    prefill_run run(planned(spec, {}, 8, 0, {{.rows = spec.rows}}));
    REQUIRE(run.go(others.view()) == status::ok);
    CHECK(same_bits(gather(run.o.view().rows(0, kept)), wanted));
    auto poisoned = layer_inputs::blank(spec);
    copy_rows(in.view(), 0, kept, poisoned, 0);
    REQUIRE(run.go(poisoned.view()) == status::ok);
    CHECK(same_bits(gather(run.o.view().rows(0, kept)), wanted));
    prefill_run shorter(planned(spec, {}, 8, 0, {{.rows = kept}}));
    REQUIRE(shorter.go(in.view()) == status::ok);
    CHECK(same_bits(shorter.outputs_of(0), wanted));
  }
}

TEST_CASE("beta is not rounded below fp32", "[segment][case-12]") {
  auto const family = GENERATE(family_id::gated_deltanet, family_id::kda);
  CAPTURE(name(family));
  // Betas that differ below bf16's last bit store values that differ as much.
  input_spec const spec{.family = family, .dims = {1, 1, 16, 4}, .rows = 64, .gates = gate_kind::zero, .seed = 211};
  layer_inputs const plain(spec);
  auto const in = changed(plain, [](tensor_view<float, 3>, rows_view rows) {
    for_each_element(rows.beta, [](float& x, std::int64_t i) { x = 1.0f + 1e-6f * static_cast<float>(i); });
    for_each_element(rows.k, [](float& x, std::int64_t i) { x = i % 16 == (i / 16) % 16 ? 1.0f : 0.0f; });
    for_each_element(rows.v, [](float& x, std::int64_t) { x = 1.0f; });
  });
  prefill_run run(planned(spec, {}, 0, 1, {{.rows = 16, .final_slot = 0}}));
  REQUIRE(run.go(in.view()) == status::ok);
  for (std::int64_t i = 0; i < 16; ++i) {
    CHECK(std::abs(run.states.view()(0, 0, i, 0) - (1.0f + 1e-6f * static_cast<float>(i))) <= 2e-7f);
  }
}

// Runs three sequences of which the second has something wrong in row 50, and gives its flags.
template <class Damage>
std::uint32_t flags_of(family_id family, Damage damage, row_options const& options = {}, std::int64_t row = 50) {
  input_spec const spec{.family = family,
                        .dims = {2, 4, 16, 24},
                        .rows = 120,
                        .gates = gate_kind::mixed,
                        .seed = 220,
                        .space = options.gates};
  layer_inputs const right(spec);
  auto const in =
      changed(right, [&](tensor_view<float, 3> q, rows_view rows) { damage(q.rows(row, 1), rows.slice(row, 1)); });
  auto const plan = planned(spec, options, 8, 3,
                            {{.rows = 30, .final_slot = 0},
                             {.first_row = 30, .rows = 60, .final_slot = 1},
                             {.first_row = 90, .rows = 30, .final_slot = 2}});
  prefill_run clean(plan), run(plan);
  REQUIRE(clean.go(right.view()) == status::ok);
  REQUIRE(run.go(in.view(), 2) == status::ok);
  CHECK(clean.flags == std::vector<std::uint32_t>(3, 0));
  // The neighbours do not notice.
  CHECK(same_bits(run.all_of(0), clean.all_of(0)));
  CHECK(same_bits(run.all_of(2), clean.all_of(2)));
  return run.flags[1];
}

TEST_CASE("Gates out of range are flagged in every space", "[segment][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  auto const gate = [](float value) {
    return [value](tensor_view<float, 3>, rows_view rows) { rows.gates(0, 3, rows.gates.extent[2] - 1) = value; };
  };
  for (auto const logs : {gate_space::natural_log, gate_space::log2}) {
    row_options const options{.gates = logs};
    CHECK(flags_of(family, gate(1e-3f), options) == gate_out_of_range);
    CHECK(flags_of(family, gate(0.98f), options) == gate_out_of_range);
    CHECK((flags_of(family, gate(infinity), options) & gate_out_of_range) != 0);
    CHECK((flags_of(family, gate(quiet_nan), options) & non_finite) != 0);
    CHECK(flags_of(family, gate(0.0f), options) == 0);
    CHECK(flags_of(family, gate(-0.0f), options) == 0);
    CHECK(flags_of(family, gate(-infinity), options) == 0);
  }
  row_options const linear{.gates = gate_space::linear};
  CHECK(flags_of(family, gate(1.001f), linear) == gate_out_of_range);
  CHECK(flags_of(family, gate(-0.02f), linear) == gate_out_of_range);
  CHECK((flags_of(family, gate(-infinity), linear) & gate_out_of_range) != 0);
  CHECK((flags_of(family, gate(infinity), linear) & gate_out_of_range) != 0);
  CHECK((flags_of(family, gate(quiet_nan), linear) & non_finite) != 0);
  CHECK(flags_of(family, gate(0.0f), linear) == 0);
  CHECK(flags_of(family, gate(1.0f), linear) == 0);
}

TEST_CASE("Linear gates under a log tag are flagged, and log gates under the linear tag", "[segment][case-06]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const given : {gate_space::linear, gate_space::natural_log}) {
    input_spec const spec{.family = family, .dims = {1, 1, 16, 24}, .rows = 60, .seed = 221, .space = given};
    layer_inputs const in(spec);
    auto const wrong = given == gate_space::linear ? gate_space::natural_log : gate_space::linear;
    auto view = in.view();
    view.gates = wrong;
    prefill_run run(planned(spec, {.gates = wrong}, 8, 0, {{.rows = 60}}));
    REQUIRE(run.go(view) == status::ok);
    CHECK((run.flags[0] & gate_out_of_range) != 0);
  }
}

TEST_CASE("NaNs and infinities in rows are flagged, wherever they stand", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (float const bad : {quiet_nan, infinity, -infinity}) {
    for (std::int64_t const row : {30, 37, 38, 89}) {
      CAPTURE(bad, row);
      CHECK((flags_of(
                 family, [&](auto q, auto) { q(0, 1, 15) = bad; }, {}, row) &
             non_finite) != 0);
      CHECK((flags_of(
                 family, [&](auto, auto rows) { rows.k(0, 1, 15) = bad; }, {}, row) &
             non_finite) != 0);
      CHECK((flags_of(
                 family, [&](auto, auto rows) { rows.v(0, 3, 23) = bad; }, {}, row) &
             non_finite) != 0);
      if (is_delta_rule(family)) {
        CHECK((flags_of(
                   family, [&](auto, auto rows) { rows.beta(0, 3) = bad; }, {}, row) &
               non_finite) != 0);
      }
    }
  }
}

TEST_CASE("An update beyond 2 + 2^-6 is flagged as expansive for the delta rules alone", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  auto const scaled = [](float beta, float length) {
    return [=](tensor_view<float, 3>, rows_view rows) {
      if (!rows.beta.empty()) rows.beta(0, 2) = beta;
      for_each_element(rows.k, [&](float& x, std::int64_t) { x *= length; });
      if (!rows.beta.empty() && length > 1.0f) {
        for (std::int64_t const h : {0, 1, 3}) rows.beta(0, h) = 0.0f;
      }
    };
  };
  std::uint32_t const expected = is_delta_rule(family) ? expansive_update : 0u;
  CHECK(flags_of(family, scaled(2.0f, 1.0f)) == 0);
  CHECK(flags_of(family, scaled(2.015f, 1.0f)) == 0);
  CHECK(flags_of(family, scaled(2.017f, 1.0f)) == expected);
  CHECK(flags_of(family, scaled(1.0f, 1.5f)) == expected);
  CHECK(flags_of(family, scaled(1.0f, 1.4f)) == 0);
  // What counts is the key that the recurrence sees.
  CHECK(flags_of(family, scaled(1.0f, 100.0f), {.l2_normalize = true}) == 0);
}

TEST_CASE("Flags are added to those that are there", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 1, 16, 24}, .rows = 20, .seed = 222};
  layer_inputs const right(spec);
  auto const in = changed(right, [](auto, auto rows) { rows.gates(4, 0, 0) = 1.0f; });
  prefill_run run(planned(spec, {}, 8, 0, {{.rows = 10}, {.first_row = 10, .rows = 10}}));
  run.flags = {1u << 30, 1u << 30};
  REQUIRE(run.go(in.view()) == status::ok);
  CHECK(run.flags[0] == ((1u << 30) | gate_out_of_range));
  CHECK(run.flags[1] == 1u << 30);
}

}  // namespace
