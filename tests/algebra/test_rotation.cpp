// SPDX-License-Identifier: Apache-2.0
#include "hypic/algebra/rotation.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/layer_data.hpp"
#include "support/random_tensor.hpp"
#include "support/rotary_case.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

std::vector<double> const& value(result<std::vector<double>> const& made) {
  REQUIRE(made.has_value());
  return made.value();
}

std::string fault(result<std::vector<double>> const& made) {
  REQUIRE_FALSE(made.has_value());
  CHECK(made.error() == status::invalid_argument);
  return made.error().argument();
}

std::vector<double> widened(std::vector<float> const& x) { return {x.begin(), x.end()}; }

// Each vector's product with its partner.
std::vector<double> products(tensor<3> const& left, tensor<3> const& right) {
  auto const x = left.packed();
  auto const y = right.packed();
  auto const dim = to_index(left.view().extent[2]);
  std::vector<double> sums(x.size() / dim, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) sums[i / dim] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sums;
}

rotation turn_of(std::int64_t rotary_dim, std::int64_t positions) {
  return make_rotation({value(plain_frequencies(rotary_dim, 1e4)), rotary_pairing::rotate_half}, positions);
}

}  // namespace

TEST_CASE("plain frequencies fall from 1 by equal factors, over the rotary dimensions alone", "[rotation]") {
  auto const four = value(plain_frequencies(4, 1e4));
  REQUIRE(four.size() == 2);
  CHECK(four[0] == 1.0);
  CHECK(four[1] == Approx(0.01).epsilon(1e-14));

  auto const eight = value(plain_frequencies(8, 1e4));
  REQUIRE(eight.size() == 4);
  CHECK(eight[1] == Approx(0.1).epsilon(1e-14));
  CHECK(eight[3] == Approx(0.001).epsilon(1e-14));
}

TEST_CASE("linear frequencies are the plain ones divided by the factor", "[rotation]") {
  auto const frequencies = value(linear_frequencies(8, 1e4, 8.0));
  CHECK(frequencies[0] == 0.125);
  CHECK(frequencies[2] == Approx(0.01 / 8.0).epsilon(1e-14));
}

TEST_CASE("NTK frequencies keep the first pair and slow the last one by the factor", "[rotation]") {
  auto const frequencies = value(ntk_frequencies(8, 1e4, 8.0));
  CHECK(frequencies[0] == 1.0);
  CHECK(frequencies[1] == Approx(0.1 / 2.0).epsilon(1e-13));
  CHECK(frequencies[2] == Approx(0.01 / 4.0).epsilon(1e-13));
  CHECK(frequencies[3] == Approx(0.001 / 8.0).epsilon(1e-13));
  CHECK(value(ntk_frequencies(2, 1e4, 8.0)) == std::vector<double>{1.0});
}

// 128 dimensions of base 1e4 over 4096 positions: pair i turns 651.9 * 1e4^(-i / 64) times, that is 32 times at
// i = 20.94 and once at i = 45.03, so the ramp goes from 20 to 46 and is halfway at 33.
TEST_CASE("YaRN frequencies ramp from plain to interpolated ones between the pairs that the paper names",
          "[rotation]") {
  auto const plain = value(plain_frequencies(128, 1e4));
  auto const yarn = value(yarn_frequencies(128, 1e4, 4.0, 4096.0));
  REQUIRE(yarn.size() == 64);
  for (std::size_t pair : {0u, 1u, 19u, 20u}) CHECK(yarn[pair] == Approx(plain[pair]).epsilon(1e-14));
  CHECK(yarn[21] == Approx(plain[21] * (1.0 - 0.75 / 26.0)).epsilon(1e-13));
  CHECK(yarn[33] == Approx(plain[33] * 0.625).epsilon(1e-13));
  CHECK(yarn[45] == Approx(plain[45] * (0.25 + 0.75 / 26.0)).epsilon(1e-13));
  for (std::size_t pair : {46u, 47u, 63u}) CHECK(yarn[pair] == Approx(plain[pair] / 4.0).epsilon(1e-14));
}

// Base 1e6 over 32768 positions: 32 turns at i = 23.60, one at i = 39.65; the ramp goes from 23 to 40.
TEST_CASE("YaRN's ramp follows the base and the original positions", "[rotation]") {
  auto const plain = value(plain_frequencies(128, 1e6));
  auto const yarn = value(yarn_frequencies(128, 1e6, 4.0, 32768.0));
  CHECK(yarn[23] == Approx(plain[23]).epsilon(1e-14));
  CHECK(yarn[24] == Approx(plain[24] * (1.0 - 0.75 / 17.0)).epsilon(1e-13));
  CHECK(yarn[39] == Approx(plain[39] * (0.25 + 0.75 / 17.0)).epsilon(1e-13));
  CHECK(yarn[40] == Approx(plain[40] / 4.0).epsilon(1e-14));
}

TEST_CASE("YaRN keeps plain frequencies where every pair turns often", "[rotation]") {
  CHECK(value(yarn_frequencies(16, 10.0, 4.0, 1e12)) == value(plain_frequencies(16, 10.0)));
}

TEST_CASE("frequencies that have no meaning are refused by name", "[rotation]") {
  double const infinite = std::numeric_limits<double>::infinity();
  CHECK(fault(plain_frequencies(0, 1e4)) == "rotary_dim");
  CHECK(fault(plain_frequencies(-2, 1e4)) == "rotary_dim");
  CHECK(fault(plain_frequencies(7, 1e4)) == "rotary_dim");
  CHECK(fault(plain_frequencies(8, 0.0)) == "base");
  CHECK(fault(plain_frequencies(8, std::nan(""))) == "base");
  CHECK(fault(linear_frequencies(8, 1e4, 0.0)) == "factor");
  CHECK(fault(ntk_frequencies(8, 1e4, -2.0)) == "factor");
  CHECK(fault(ntk_frequencies(8, infinite, 2.0)) == "base");
  CHECK(fault(yarn_frequencies(8, 1.0, 4.0, 4096.0)) == "base");
  CHECK(fault(yarn_frequencies(8, 1e4, infinite, 4096.0)) == "factor");
  CHECK(fault(yarn_frequencies(8, 1e4, 4.0, 6.0)) == "original_positions");
  CHECK(fault(yarn_frequencies(8, 1e4, 4.0, infinite)) == "original_positions");
  CHECK(fault(yarn_frequencies(8, 1e4, 4.0, 4096.0, 1.0, 2.0)) == "beta_fast");
  CHECK(fault(yarn_frequencies(8, 1e4, 4.0, 4096.0, 32.0, 0.0)) == "beta_slow");
}

TEST_CASE("turned vectors equal the exact turn to 1e-6, to position 1e6 and back", "[rotation][case-16]") {
  for (auto const& one : rotary_cases()) {
    auto const x = random_tensor<3>({5, 3, one.dim}, 1, 1.0f, layout::gaps);
    for (std::int64_t const position : {1, 2, 17, 4096, 65537, 131071, 999'983, 1'000'000, -1, -999'999}) {
      CAPTURE(one.text, position);
      tensor<3> turned({5, 3, one.dim}, layout::gaps);
      REQUIRE(rotate_rows(make_rotation(one.rotary, position), x.view(), turned.view(), {}) == status::ok);
      CHECK(relative_error(turned.packed(), one.turned(x.packed(), static_cast<oracle::real>(position))) <= 2e-7);
      CHECK(turned.gaps_intact());
    }
  }
}

TEST_CASE("scores are invariant under a common shift of query and key", "[rotation][case-16]") {
  for (auto const& one : rotary_cases()) {
    auto const q = random_tensor<3>({7, 2, one.dim}, 2);
    auto const k = random_tensor<3>({7, 2, one.dim}, 3);
    auto const scores = [&](std::int64_t q_position, std::int64_t k_position) {
      tensor<3> turned_q({7, 2, one.dim});
      tensor<3> turned_k({7, 2, one.dim});
      REQUIRE(rotate_rows(make_rotation(one.rotary, q_position), q.view(), turned_q.view(), {}) == status::ok);
      REQUIRE(rotate_rows(make_rotation(one.rotary, k_position), k.view(), turned_k.view(), {}) == status::ok);
      return products(turned_q, turned_k);
    };
    auto const at_origin = scores(40, 3);
    for (std::int64_t const shift : {1, 1000, 131'072, 999'960}) {
      CAPTURE(one.text, shift);
      auto const shifted = scores(40 + shift, 3 + shift);
      for (std::size_t i = 0; i < shifted.size(); ++i) CHECK(shifted[i] == Approx(at_origin[i]).margin(2e-5));
    }
  }
}

TEST_CASE("turns add: a vector turned by q and then by p stands at p + q", "[rotation][case-16]") {
  for (auto const& one : rotary_cases()) {
    CAPTURE(one.text);
    auto const x = random_tensor<3>({9, 2, one.dim}, 4);
    tensor<3> turned({9, 2, one.dim});
    REQUIRE(rotate_rows(make_rotation(one.rotary, 511), x.view(), turned.view(), {}) == status::ok);
    REQUIRE(rotate_rows(make_rotation(one.rotary, 999'000), turned.view(), turned.view(), {}) == status::ok);
    CHECK(relative_error(turned.packed(), one.turned(x.packed(), 999'511.0L)) <= 3e-7);
  }
}

TEST_CASE("the turn by no positions is the identity, bit for bit", "[rotation]") {
  auto const turn = turn_of(16, 0);
  CHECK(turn.identity());
  CHECK_FALSE(turn_of(16, 1).identity());
  auto const x = random_tensor<3>({4, 2, 20}, 5);
  tensor<3> rows({4, 2, 20});
  tensor<3> states({4, 2, 20}, layout::transposed);
  REQUIRE(rotate_rows(turn, x.view(), rows.view(), {}) == status::ok);
  REQUIRE(rebase(turn, x.view(), states.view(), {}) == status::ok);
  CHECK(same_bits(rows.packed(), x.packed()));
  CHECK(same_bits(states.packed(), x.packed()));
}

TEST_CASE("turning in place and with any number of threads gives the same bits", "[rotation]") {
  for (auto const& one : rotary_cases()) {
    CAPTURE(one.text);
    auto const turn = make_rotation(one.rotary, 12'345);
    auto const x = random_tensor<3>({131, 2, one.dim}, 6);
    tensor<3> rows({131, 2, one.dim});
    REQUIRE(rotate_rows(turn, x.view(), rows.view(), {.threads = 1}) == status::ok);
    for (int const threads : {1, 2, 5}) {
      auto in_place = x;
      REQUIRE(rotate_rows(turn, in_place.view(), in_place.view(), {.threads = threads}) == status::ok);
      CHECK(same_bits(in_place.packed(), rows.packed()));
    }
  }
}

TEST_CASE("rebased states equal the exact turn of their key axis, whatever their layout", "[rotation][case-16]") {
  std::int64_t const values = 6;
  for (auto const& one : rotary_cases()) {
    for (auto const how : {layout::dense, layout::gaps, layout::transposed}) {
      CAPTURE(one.text, static_cast<int>(how));
      auto const states = random_tensor<3>({3, one.dim, values}, 7, 1.0f, how);
      auto const turn = make_rotation(one.rotary, 999'999);
      tensor<3> out({3, one.dim, values}, how);
      REQUIRE(rebase(turn, states.view(), out.view(), {}) == status::ok);
      CHECK(out.gaps_intact());

      // A column of a state is a vector of the key axis.
      for (std::int64_t v = 0; v < values; ++v) {
        std::vector<float> before, after;
        for (std::int64_t h = 0; h < 3; ++h) {
          for (std::int64_t d = 0; d < one.dim; ++d) {
            before.push_back(states.view()(h, d, v));
            after.push_back(out.view()(h, d, v));
          }
        }
        CHECK(relative_error(after, one.turned(before, 999'999.0L)) <= 2e-7);
      }
      for (int const threads : {1, 2}) {
        auto in_place = states;
        REQUIRE(rebase(turn, in_place.view(), in_place.view(), {.threads = threads}) == status::ok);
        CHECK(same_bits(in_place.packed(), out.packed()));
      }
    }
  }
}

TEST_CASE("a rebased state is the state of turned keys: R (k v^T) = (R k) v^T", "[rotation]") {
  auto const turn = turn_of(16, 4321);
  auto const k = random_tensor<3>({1, 1, 24}, 8);
  tensor<3> turned({1, 1, 24});
  REQUIRE(rotate_rows(turn, k.view(), turned.view(), {}) == status::ok);
  auto const v = random_tensor<1>({10}, 9);
  auto const outer = [&](tensor<3> const& key) {
    tensor<3> state({1, 24, 10});
    for_each_element(state.view(), [&](float& x, std::int64_t i) { x = key.view()(0, 0, i / 10) * v.view()(i % 10); });
    return state;
  };
  tensor<3> out({1, 24, 10});
  REQUIRE(rebase(turn, outer(k).view(), out.view(), {}) == status::ok);
  CHECK(relative_error(out.packed(), widened(outer(turned).packed())) <= 2e-7);
}

TEST_CASE("turning nothing is fine", "[rotation]") {
  auto const turn = turn_of(16, 5);
  tensor_view<float, 3> const no_rows{nullptr, {0, 2, 16}, {32, 16, 1}};
  tensor_view<float, 3> const no_heads{nullptr, {0, 16, 4}, {64, 4, 1}};
  CHECK(rotate_rows(turn, no_rows, no_rows, {}) == status::ok);
  CHECK(rebase(turn, no_heads, no_heads, {}) == status::ok);
}

TEST_CASE("a misused turn is refused by name and writes nothing", "[rotation]") {
  auto const turn = turn_of(16, 5);
  auto const in = random_tensor<3>({4, 2, 20}, 10);
  tensor<3> out({4, 2, 20});
  auto const refused = [&](auto const& call, rotation const& with, tensor_view<float const, 3> from,
                           tensor_view<float, 3> to, int threads = 1) -> std::string {
    auto const outcome = call(with, from, to, host_exec{.threads = threads});
    CHECK(outcome != status::ok);
    return outcome.argument();
  };
  auto const lame = [&] {
    auto half = turn;
    half.sine.pop_back();
    return half;
  }();
  auto missing = in.view();
  missing.data = nullptr;
  auto negative = in.view();
  negative.extent[0] = -1;
  auto strided = in.view();
  strided.stride[2] = 2;
  auto shorter = out.view();
  shorter.extent[1] = 1;

  for (auto const call : {rotate_rows, rebase}) {
    CHECK(refused(call, lame, in.view(), out.view()) == "turn");
    CHECK(refused(call, turn_of(22, 5), in.view(), out.view()) == "turn");
    CHECK(refused(call, turn, missing, out.view()) == "in");
    CHECK(refused(call, turn, negative, out.view()) == "in");
    CHECK(refused(call, turn, in.view(), shorter) == "out");
    CHECK(refused(call, turn_of(2, 5), in.view(), out.view(), 0) == "ex.threads");
  }
  CHECK(refused(rotate_rows, turn, strided, out.view()) == "in");
  CHECK(refused(rebase, turn_of(4, 5), in.view(), out.view()) == "turn");  // its key axis has two dimensions
  tensor<3> untouched({4, 2, 20});
  CHECK(same_bits(out.packed(), untouched.packed()));
}
