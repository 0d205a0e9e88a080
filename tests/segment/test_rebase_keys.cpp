// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/rebase_keys.hpp"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "support/layer_data.hpp"
#include "support/random_tensor.hpp"
#include "support/rotary_case.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int64_t rows = 70;
constexpr std::int64_t heads = 2;
constexpr std::int64_t value_dim = 9;

// Row r turned to position first + r, as a host would have cached it.
tensor<3> keys_at(rotary_case const& one, tensor<3> const& raw, std::int64_t first) {
  tensor<3> keys({rows, heads, one.dim}, layout::gaps);
  for (std::int64_t r = 0; r < rows; ++r) {
    auto const turn = make_rotation(one.rotary, first + r);
    REQUIRE(rotate_rows(turn, raw.view().rows(r, 1), keys.view().rows(r, 1), {}) == status::ok);
  }
  return keys;
}

std::vector<double> exact_keys_at(rotary_case const& one, tensor<3> const& raw, std::int64_t first) {
  std::vector<double> keys;
  for (std::int64_t r = 0; r < rows; ++r) {
    auto const row = one.turned(gather(raw.view().rows(r, 1)), static_cast<oracle::real>(first + r));
    keys.insert(keys.end(), row.begin(), row.end());
  }
  return keys;
}

}  // namespace

TEST_CASE("rebased keys equal the exact turn of the cached ones to 1e-6 up to position 1e6, and values are copied",
          "[rebase_keys][case-16]") {
  for (auto const& one : rotary_cases()) {
    auto const keys = random_tensor<3>({rows, heads, one.dim}, 1, 1.0f, layout::gaps);
    auto const values = random_tensor<3>({rows, heads, value_dim}, 2, 1.0f, layout::gaps);
    for (std::int64_t const start : {0, 1, 4096, 131'071, 1'000'000}) {
      CAPTURE(one.text, start);
      tensor<3> keys_out({rows, heads, one.dim}, layout::gaps);
      tensor<3> values_out({rows, heads, value_dim}, layout::gaps);
      REQUIRE(rebase_keys(make_rotation(one.rotary, start), keys.view(), values.view(), keys_out.view(),
                          values_out.view(), {}) == status::ok);
      CHECK(relative_error(keys_out.packed(), one.turned(keys.packed(), static_cast<oracle::real>(start))) <= 2e-7);
      CHECK(same_bits(values_out.packed(), values.packed()));
      CHECK(keys_out.gaps_intact());
      CHECK(values_out.gaps_intact());
    }
  }
}

TEST_CASE("keys cached from position 0 and rebased stand where keys computed in place would",
          "[rebase_keys][case-16]") {
  for (auto const& one : rotary_cases()) {
    CAPTURE(one.text);
    auto const raw = random_tensor<3>({rows, heads, one.dim}, 3);
    auto const values = random_tensor<3>({rows, heads, value_dim}, 4);
    auto const cached = keys_at(one, raw, 0);
    tensor<3> keys_out({rows, heads, one.dim});
    tensor<3> values_out({rows, heads, value_dim});
    REQUIRE(rebase_keys(make_rotation(one.rotary, 999'900), cached.view(), values.view(), keys_out.view(),
                        values_out.view(), {}) == status::ok);
    CHECK(relative_error(keys_out.packed(), exact_keys_at(one, raw, 999'900)) <= 1e-6);
  }
}

TEST_CASE("rebased keys are the same bits for any number of threads", "[rebase_keys]") {
  auto const one = rotary_cases().front();
  auto const keys = random_tensor<3>({rows, heads, one.dim}, 5);
  auto const values = random_tensor<3>({rows, heads, value_dim}, 6);
  auto const rebased = [&](int threads) {
    tensor<3> keys_out({rows, heads, one.dim});
    tensor<3> values_out({rows, heads, value_dim});
    REQUIRE(rebase_keys(make_rotation(one.rotary, 77), keys.view(), values.view(), keys_out.view(), values_out.view(),
                        {.threads = threads}) == status::ok);
    CHECK(same_bits(values_out.packed(), values.packed()));
    return keys_out.packed();
  };
  auto const alone = rebased(1);
  CHECK(same_bits(rebased(2), alone));
  CHECK(same_bits(rebased(7), alone));
}

TEST_CASE("rebasing no keys is fine", "[rebase_keys]") {
  auto const turn = make_rotation(rotary_cases().front().rotary, 3);
  tensor_view<float, 3> const none{nullptr, {0, 2, 64}, {128, 64, 1}};
  CHECK(rebase_keys(turn, none, none, none, none, {}) == status::ok);
}

TEST_CASE("misused keys are refused by name and nothing is written", "[rebase_keys]") {
  auto const one = rotary_cases().front();
  auto const turn = make_rotation(one.rotary, 3);
  auto const keys = random_tensor<3>({4, 2, one.dim}, 7);
  auto const narrow = random_tensor<3>({4, 2, one.dim - 2}, 8);
  auto const values = random_tensor<3>({4, 2, 6}, 9);
  auto const fewer = random_tensor<3>({3, 2, 6}, 10);
  tensor<3> keys_out({4, 2, one.dim});
  tensor<3> narrow_out({4, 2, one.dim - 2});
  tensor<3> values_out({4, 2, 6});
  auto const refused = [](status const& outcome) -> std::string {
    CHECK(outcome != status::ok);
    return outcome.argument();
  };
  auto strided = keys.view();
  strided.stride[2] = 2;
  CHECK(refused(rebase_keys(turn, strided, values.view(), keys_out.view(), values_out.view(), {})) == "keys");
  CHECK(refused(rebase_keys(turn, keys.view(), fewer.view(), keys_out.view(), values_out.view(), {})) == "values");
  CHECK(refused(rebase_keys(turn, keys.view(), values.view(), narrow_out.view(), values_out.view(), {})) == "keys_out");
  CHECK(refused(rebase_keys(turn, keys.view(), values.view(), keys_out.view(), {}, {})) == "values_out");
  CHECK(refused(rebase_keys(turn, narrow.view(), values.view(), narrow_out.view(), values_out.view(), {})) == "turn");
  auto in_place = random_tensor<3>({4, 2, one.dim}, 11);
  CHECK(refused(rebase_keys(turn, in_place.view(), values.view(), in_place.view(), values_out.view(), {})) ==
        "keys_out overlaps an input");
  CHECK(refused(rebase_keys(turn, keys.view(), values_out.view(), keys_out.view(), values_out.view(), {})) ==
        "values_out overlaps an input");
  CHECK(refused(rebase_keys(turn, keys.view(), keys.view(), keys_out.view(), keys_out.view(), {})) ==
        "values_out overlaps keys_out");
  host_exec const idle{.threads = 0};
  CHECK(refused(rebase_keys(turn, keys.view(), values.view(), keys_out.view(), values_out.view(), idle)) ==
        "ex.threads");
  tensor<3> untouched({4, 2, 6});
  CHECK(same_bits(values_out.packed(), untouched.packed()));
  CHECK(keys_out.gaps_intact());
}
