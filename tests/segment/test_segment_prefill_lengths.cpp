// SPDX-License-Identifier: Apache-2.0
// The long checks of segment_prefill: every length, and a very long run.
#include "hypic/segment/segment_prefill.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "segment/prefill_run.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

double norm(std::vector<double> const& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double distance(std::vector<float> const& found, std::vector<double> wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] -= static_cast<double>(found[i]);
  return norm(wanted);
}

TEST_CASE("Lengths 1 to 600 equal the sequential recurrence, small heads of every input", "[segment][case-07]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  std::int32_t const heads_kept[] = {0, 1, 8, 16};
  std::uint64_t seed = 100;
  for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical}) {
    for (auto const gates : {gate_kind::zero, gate_kind::slow, gate_kind::mixed, gate_kind::resets}) {
      auto const betas = seed % 3 == 0 ? beta_kind::two : beta_kind::uniform;
      check_all_lengths({.family = family,
                         .dims = {1, 1, 16, seed % 2 == 0 ? 16 : 48},
                         .rows = 600,
                         .keys = keys,
                         .gates = gates,
                         .betas = betas,
                         .seed = seed},
                        heads_kept[seed % 4]);
      ++seed;
    }
  }
}

TEST_CASE("Lengths 1 to 600 equal the sequential recurrence, heads of 64", "[segment][case-07]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical}) {
    check_all_lengths(
        {.family = family, .dims = {1, 1, 64, 32}, .rows = 600, .keys = keys, .gates = gate_kind::mixed, .seed = 200},
        8);
  }
  check_all_lengths({.family = family,
                     .dims = {1, 1, 64, 64},
                     .rows = 600,
                     .keys = key_kind::correlated,
                     .gates = gate_kind::zero,
                     .betas = beta_kind::two,
                     .seed = 201},
                    0);
}

TEST_CASE("Lengths 1 to 600 equal the sequential recurrence, heads of 128", "[segment][case-07]") {
  auto const family = GENERATE(from_range(all_families));
  CAPTURE(name(family));
  check_all_lengths({.family = family,
                     .dims = {1, 1, 128, 128},
                     .rows = 600,
                     .keys = key_kind::correlated,
                     .gates = gate_kind::slow,
                     .seed = 300},
                    8);
}

/// The recurrence of one head and the largest norm that its state has had.
struct followed_run {
  layer_oracle oracle;
  double largest = 0.0;
  std::vector<double> outputs{};

  void step(layer_inputs const& in, std::int64_t token) {
    oracle.step(in.rows.view(), token);
    largest = std::max(largest, norm(oracle.head(0).state()));
    auto const o = oracle.output(in.q.view(), token);
    outputs.insert(outputs.end(), o.begin(), o.end());
  }

  /// States can cancel: what their error is relative to is the largest of them.
  void check_body(prefill_plan const& plan, summary_data const& body, double share_of_largest) const {
    REQUIRE(operator_excess(form_of(plan.family), plan.dims.key_dim, body.view().operators, oracle) <= 1.0);
    REQUIRE(distance(body.end_states.packed(), oracle.head(0).state()) <= share_of_largest * largest);
  }
};

void check_small_head(input_spec const& spec) {
  INFO(spec.text());
  layer_inputs const in(spec);
  followed_run wanted{{spec.family, spec.dims, {}}};
  for (std::int64_t n = 1; n <= spec.rows; ++n) {
    CAPTURE(n);
    wanted.step(in, n - 1);
    prefill_run run(planned(spec, {}, 0, 0, {{.rows = n}}));
    REQUIRE(run.go(in.view()) == status::ok);
    wanted.check_body(run.plan, run.bodies[0], 1e-6);
    REQUIRE(output_error(std::as_const(run.o).view().rows(0, n), wanted.outputs) <= 1e-5);
  }
}

TEST_CASE("Lengths 1 to 600 equal the sequential recurrence, heads of 1 to 8 whose states cancel", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  std::uint64_t seed = 600;
  for (std::int32_t const key_dim : {1, 2, 3, 8}) {
    for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical}) {
      for (auto const gates : {gate_kind::zero, gate_kind::slow}) {
        for (auto const betas : {beta_kind::two, beta_kind::uniform}) {
          check_small_head({.family = family,
                            .dims = {1, 1, key_dim, seed % 2 == 0 ? 1 : 4},
                            .rows = 600,
                            .keys = keys,
                            .gates = gates,
                            .betas = betas,
                            .seed = seed});
          ++seed;
        }
      }
    }
  }
}

/// Reflections that never decay, b |k|^2 = 2 under log gates of 0, keep every rounding.
void check_reflections(family_id family, std::int32_t key_dim, std::int64_t tokens, std::uint64_t seed) {
  for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical}) {
    input_spec const spec{.family = family,
                          .dims = {1, 1, key_dim, 4},
                          .rows = tokens,
                          .keys = keys,
                          .gates = gate_kind::zero,
                          .betas = beta_kind::two,
                          .seed = seed};
    INFO(spec.text());
    layer_inputs const in(spec);
    prefill_run run(planned(spec, {}, 0, 0, {{.rows = tokens}}));
    REQUIRE(run.go(in.view()) == status::ok);
    followed_run wanted{{family, spec.dims, {}}};
    for (std::int64_t t = 0; t < tokens; ++t) wanted.step(in, t);
    wanted.check_body(run.plan, run.bodies[0], 1e-5);
    CHECK(output_error(std::as_const(run.o).view(), wanted.outputs) <= 1e-5);
  }
}

TEST_CASE("Where nothing is forgotten, 4096 tokens equal the sequential recurrence", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  for (std::int32_t const key_dim : {1, 2, 3, 8, 16, 64, 128}) check_reflections(family, key_dim, 4096, 700);
}

TEST_CASE("Where nothing is forgotten, 64k tokens equal the sequential recurrence", "[segment]") {
  auto const family = GENERATE(from_range(all_families));
  for (std::int32_t const key_dim : {1, 2, 3, 8, 16, 64}) check_reflections(family, key_dim, 65536, 701);
}

TEST_CASE("Over 64k tokens the state stays that of fp32 beta, where bf16 beta would drift", "[segment][case-12]") {
  auto const family = GENERATE(family_id::gated_deltanet, family_id::kda);
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 1, 32, 32}, .rows = 65536, .gates = gate_kind::slow, .seed = 400};
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 1, {{.rows = spec.rows, .final_slot = 0}}));
  REQUIRE(run.go(in.view()) == status::ok);

  auto rounded = in.rows;
  for_each_element(rounded.beta.view(), [](float& x, std::int64_t) {
    auto const bits = std::bit_cast<std::uint32_t>(x);
    x = std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  });
  layer_oracle wanted(family, spec.dims, {}), drifted(family, spec.dims, {});
  for (std::int64_t t = 0; t < spec.rows; ++t) {
    wanted.step(in.rows.view(), t);
    drifted.step(std::as_const(rounded).view(), t);
  }
  CHECK(state_error(std::as_const(run.states).view()[0], wanted) <= 1e-5);
  CHECK(state_error(std::as_const(run.states).view()[0], drifted) > 1e-4);
}

TEST_CASE("Over 64k tokens of slow decay the state stays that of the recurrence", "[segment][case-15]") {
  auto const family = GENERATE(family_id::retnet, family_id::gla);
  CAPTURE(name(family));
  input_spec const spec{.family = family, .dims = {1, 1, 32, 32}, .rows = 65536, .gates = gate_kind::slow, .seed = 401};
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 8, 1, {{.rows = spec.rows, .final_slot = 0}}));
  REQUIRE(run.go(in.view()) == status::ok);
  layer_oracle wanted(family, spec.dims, {});
  for (std::int64_t t = 0; t < spec.rows; ++t) wanted.step(in.rows.view(), t);
  CHECK(state_error(std::as_const(run.states).view()[0], wanted) <= 1e-5);
}

}  // namespace
