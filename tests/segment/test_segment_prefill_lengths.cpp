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

/// Reflections that never decay keep every rounding: b |k|^2 = 2, log gates of 0.
void check_reflections(family_id family, std::int32_t key_dim, key_kind keys, std::uint64_t seed) {
  constexpr double per_token = 5e-8;
  input_spec const spec{.family = family,
                        .dims = {1, 1, key_dim, 4},
                        .rows = 16384,
                        .keys = keys,
                        .gates = gate_kind::zero,
                        .betas = beta_kind::two,
                        .seed = seed};
  INFO(spec.text());
  layer_inputs const in(spec);
  prefill_run run(planned(spec, {}, 0, 0, {{.rows = spec.rows}}));
  REQUIRE(run.go(in.view()) == status::ok);
  layer_oracle wanted(family, spec.dims, {});
  double largest = 0.0;
  for (std::int64_t t = 0; t < spec.rows; ++t) {
    wanted.step(in.rows.view(), t);
    largest = std::max(largest, norm(wanted.head(0).state()));
  }
  auto const transition = wanted.head(0).transition();
  double const more = per_token * static_cast<double>(spec.rows);
  CHECK(distance(run.bodies[0].operators.packed(), transition) <=
        1e-5 * norm(transition) + 1e-7 * std::sqrt(key_dim) + more);
  CHECK(distance(run.bodies[0].end_states.packed(), wanted.head(0).state()) <= (1e-5 + more) * largest);
}

TEST_CASE("Where nothing is forgotten, errors grow with the tokens by no more than the contract says", "[segment]") {
  auto const family = GENERATE(family_id::gated_deltanet, family_id::kda);
  std::uint64_t seed = 500;
  for (std::int32_t const key_dim : {1, 2, 3, 16}) {
    for (auto const keys : {key_kind::random, key_kind::correlated, key_kind::identical})
      check_reflections(family, key_dim, keys, seed++);
  }
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
