// SPDX-License-Identifier: Apache-2.0
// The oracle is what everything else is measured against, so it is first measured against mathematics.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "oracle/recurrence_oracle.hpp"

namespace {

using oracle::recurrence;

struct token {
  std::vector<double> k, v, log_decay;
  double b = 0.0;
};

std::vector<recurrence> const laws = {recurrence::scalar_decay, recurrence::diagonal_decay, recurrence::delta_rule,
                                      recurrence::diagonal_delta_rule};

bool per_channel(recurrence law) { return law == recurrence::diagonal_decay || law == recurrence::diagonal_delta_rule; }
bool delta(recurrence law) { return law == recurrence::delta_rule || law == recurrence::diagonal_delta_rule; }

std::vector<token> draw(recurrence law, std::size_t tokens, std::size_t dk, std::size_t dv, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<token> run(tokens);
  for (auto& t : run) {
    for (std::size_t i = 0; i < dk; ++i) t.k.push_back(normal(random));
    t.k = oracle::normalized(t.k, 0.0);
    for (std::size_t i = 0; i < dv; ++i) t.v.push_back(normal(random));
    for (std::size_t i = 0; i < (per_channel(law) ? dk : 1); ++i) t.log_decay.push_back(-uniform(random));
    t.b = 2.0 * uniform(random);
  }
  return run;
}

void feed(oracle::head& head, std::vector<token> const& run) {
  for (auto const& t : run) head.step(t.k.data(), t.v.data(), t.log_decay.data(), t.b);
}

// A of one token, written out as a matrix.
std::vector<double> step_matrix(recurrence law, token const& t) {
  std::size_t const n = t.k.size();
  std::vector<double> decay(n * n, 0.0);
  std::vector<double> reflect(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    decay[i * n + i] = std::exp(t.log_decay[per_channel(law) ? i : 0]);
    for (std::size_t j = 0; j < n; ++j) {
      reflect[i * n + j] = (i == j ? 1.0 : 0.0) - (delta(law) ? t.b * t.k[i] * t.k[j] : 0.0);
    }
  }
  return oracle::product(reflect, decay, n, n, n);
}

double distance(std::vector<double> const& left, std::vector<double> const& right) {
  REQUIRE(left.size() == right.size());
  double most = 0.0;
  for (std::size_t i = 0; i < left.size(); ++i) most = std::max(most, std::abs(left[i] - right[i]));
  return most;
}

TEST_CASE("The oracle's operator is the product of its tokens' matrices") {
  constexpr std::size_t dk = 7, dv = 5;
  for (auto const law : laws) {
    auto const run = draw(law, 12, dk, dv, 11);
    oracle::head head(law, dk, dv);
    feed(head, run);
    std::vector<double> wanted(dk * dk, 0.0);
    for (std::size_t i = 0; i < dk; ++i) wanted[i * dk + i] = 1.0;
    for (auto const& t : run) wanted = oracle::product(step_matrix(law, t), wanted, dk, dk, dk);
    CHECK(distance(head.transition(), wanted) < 1e-14);
  }
}

TEST_CASE("The oracle's state is T times the state it starts from plus its end state from zero") {
  constexpr std::size_t dk = 6, dv = 9;
  for (auto const law : laws) {
    auto const run = draw(law, 20, dk, dv, 12);
    std::vector<double> initial(dk * dv);
    std::mt19937_64 random(3);
    for (double& x : initial) x = std::normal_distribution<double>()(random);
    oracle::head from_zero(law, dk, dv), from_state(law, dk, dv);
    from_state.start(initial);
    feed(from_zero, run);
    feed(from_state, run);
    auto wanted = oracle::product(from_zero.transition(), initial, dk, dk, dv);
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += from_zero.state()[i];
    CHECK(distance(from_state.state(), wanted) < 1e-13);
    CHECK(distance(from_state.transition(), from_zero.transition()) == 0.0);
  }
}

TEST_CASE("A constant decay sums the oracle's state geometrically") {
  double const a = 0.9;
  std::vector<double> const k = {0.6, 0.8}, v = {2.0, -1.0, 0.5}, log_decay = {std::log(a)};
  oracle::head head(recurrence::scalar_decay, 2, 3);
  for (int t = 0; t < 50; ++t) head.step(k.data(), v.data(), log_decay.data(), 0.0);
  double const sum = (1.0 - std::pow(a, 50)) / (1.0 - a);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 3; ++j) CHECK(head.state()[i * 3 + j] == Approx(k[i] * v[j] * sum).epsilon(1e-13));
  }
  CHECK(head.log_transition()[0] == Approx(50 * std::log(a)).epsilon(1e-14));
  auto const o = head.output(std::vector<double>{1.0, 1.0}.data(), 0.5);
  CHECK(o[0] == Approx(0.5 * 1.4 * 2.0 * sum).epsilon(1e-13));
}

TEST_CASE("With b = 1 and a unit key the oracle projects the key out and stores the newest value under it") {
  std::vector<double> const k = {0.6, 0.8}, first = {2.0}, second = {5.0}, none = {0.0};
  oracle::head head(recurrence::delta_rule, 2, 1);
  head.step(k.data(), first.data(), none.data(), 1.0);
  head.step(k.data(), second.data(), none.data(), 1.0);
  CHECK(head.output(k.data(), 1.0)[0] == Approx(5.0).epsilon(1e-14));
  auto const t = head.transition();
  CHECK(distance(t, oracle::product(t, t, 2, 2, 2)) < 1e-15);
  CHECK(distance(t, {0.64, -0.48, -0.48, 0.36}) < 1e-15);
}

TEST_CASE("The diagonal delta rule decays first and corrects then") {
  std::vector<double> const k = {0.6, 0.8}, v = {0.0}, log_decay = {std::log(0.5), 0.0};
  oracle::head head(recurrence::diagonal_delta_rule, 2, 1);
  head.start({1.0, 1.0});
  head.step(k.data(), v.data(), log_decay.data(), 1.0);
  // Diag(a) S = (0.5, 1); its part along k is 1.1.
  CHECK(distance(head.state(), {0.5 - 0.66, 1.0 - 0.88}) < 1e-15);
}

TEST_CASE("Equal channel decays are a scalar decay") {
  for (auto const& [scalar, channels] : {std::pair{recurrence::scalar_decay, recurrence::diagonal_decay},
                                         std::pair{recurrence::delta_rule, recurrence::diagonal_delta_rule}}) {
    auto run = draw(scalar, 15, 5, 4, 21);
    oracle::head one(scalar, 5, 4), many(channels, 5, 4);
    feed(one, run);
    for (auto& t : run) t.log_decay.assign(5, t.log_decay[0]);
    feed(many, run);
    CHECK(distance(one.state(), many.state()) < 1e-14);
    CHECK(distance(one.transition(), many.transition()) < 1e-14);
  }
}

TEST_CASE("A log decay of minus infinity resets the oracle") {
  for (auto const law : laws) {
    auto run = draw(law, 6, 4, 3, 31);
    for (double& x : run[3].log_decay) x = -std::numeric_limits<double>::infinity();
    oracle::head whole(law, 4, 3), rest(law, 4, 3);
    feed(whole, run);
    feed(rest, {run.begin() + 3, run.end()});
    CHECK(distance(whole.state(), rest.state()) == 0.0);
    CHECK(distance(whole.transition(), std::vector<double>(16, 0.0)) == 0.0);
  }
}

TEST_CASE("The oracle's turns keep lengths and add up") {
  std::vector<double> const x = {1.0, 2.0, 3.0, 4.0, 5.0};
  std::vector<double> const frequencies = {1.0, 0.1};
  for (bool const interleaved : {false, true}) {
    auto const once = oracle::turned(x, frequencies, interleaved, 7.0);
    auto const twice = oracle::turned(oracle::turned(x, frequencies, interleaved, 3.0), frequencies, interleaved, 4.0);
    CHECK(distance(once, twice) < 1e-14);
    CHECK(once[4] == 5.0);
    std::size_t const partner = interleaved ? 1 : 2;
    CHECK(once[0] == Approx(std::cos(7.0) * x[0] - std::sin(7.0) * x[partner]).epsilon(1e-14));
  }
}

}  // namespace
