// SPDX-License-Identifier: Apache-2.0
#include "hypic/algebra/tail.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "support/layer_data.hpp"
#include "support/random_tensor.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int64_t channels = 3;

// Rows [first, first + count) as an owned tensor with gaps.
tensor<2> copied(tensor<2> const& from, std::int64_t first, std::int64_t count) {
  tensor<2> rows({count, channels}, layout::gaps);
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t c = 0; c < channels; ++c) rows.view()(r, c) = from.view()(first + r, c);
  }
  return rows;
}

// What a long run leaves: the last `length` of (zeros, rows before `end`).
tensor<2> tail_of(tensor<2> const& run, std::int64_t end, std::int64_t length) {
  tensor<2> tail({length, channels});
  for (std::int64_t r = 0; r < length; ++r) {
    auto const row = end - length + r;
    for (std::int64_t c = 0; c < channels; ++c) tail.view()(r, c) = row < 0 ? 0.0f : run.view()(row, c);
  }
  return tail;
}

}  // namespace

TEST_CASE("tails over segments of 0 to 4 tokens compose to the tail of one long run", "[tail][case-13]") {
  auto const run = random_tensor<2>({16, channels}, 1);
  for (std::int64_t const length : {1, 2, 3, 5}) {  // K - 1
    for (std::int64_t chain = 0; chain < 625; ++chain) {
      tensor<2> tail({length, channels}, layout::gaps);
      tail.fill(0.0f);
      std::int64_t start = 0;
      for (std::int64_t rest = chain, i = 0; i < 4; rest /= 5, ++i) {
        auto const tokens = rest % 5;
        CAPTURE(length, chain, i, tokens);
        auto const forwarded = (i + chain) % (tokens + 1);
        auto const kept = std::min(length, tokens);
        auto const fresh = copied(run, start, forwarded);
        auto cached = copied(run, start + tokens - kept, kept);
        // Rows of the record that were forwarded anew are stale: the tail has to take the fresh ones.
        for (std::int64_t r = 0; r < kept; ++r) {
          if (tokens - kept + r < forwarded) cached.view()(r, 0) = 1e9f;
        }
        tensor<2> next({length, channels}, layout::gaps);
        REQUIRE(continue_tail(tail.view(), tokens, fresh.view(), cached.view(), next.view()) == status::ok);
        start += tokens;
        REQUIRE(same_bits(next.packed(), tail_of(run, start, length).packed()));
        REQUIRE(next.gaps_intact());
        tail = next;
      }
    }
  }
}

TEST_CASE("a span forwarded whole needs no cached rows", "[tail]") {
  auto const run = random_tensor<2>({7, channels}, 2);
  auto const previous = tail_of(run, 2, 3);
  tensor<2> out({3, channels});
  for (std::int64_t const tokens : {0, 1, 2, 5}) {
    CAPTURE(tokens);
    REQUIRE(continue_tail(previous.view(), tokens, copied(run, 2, tokens).view(), {}, out.view()) == status::ok);
    CHECK(same_bits(out.packed(), tail_of(run, 2 + tokens, 3).packed()));
  }
  REQUIRE(continue_tail(previous.view(), 0, {}, {}, out.view()) == status::ok);
  CHECK(same_bits(out.packed(), previous.packed()));
}

TEST_CASE("a convolution of length 1 has an empty tail", "[tail]") {
  auto const fresh = random_tensor<2>({4, channels}, 3);
  CHECK(continue_tail({}, 9, fresh.view(), {}, {}) == status::ok);
}

TEST_CASE("a misused tail is refused by name and writes nothing", "[tail]") {
  auto const three = random_tensor<2>({3, channels}, 4);
  auto const two = random_tensor<2>({2, channels}, 5);
  auto const wide = random_tensor<2>({3, channels + 1}, 6);
  tensor<2> out({3, channels});
  auto const refused = [](status const& outcome) -> std::string {
    CHECK(outcome == status::invalid_shape);
    return outcome.argument();
  };
  auto strided = three.view();
  strided.stride[1] = 2;
  tensor_view<float, 2> const missing{nullptr, {3, channels}, {channels, 1}};

  CHECK(refused(continue_tail(three.view(), -1, {}, three.view(), out.view())) == "tokens");
  CHECK(refused(continue_tail(three.view(), 2, three.view(), {}, out.view())) == "fresh");
  CHECK(refused(continue_tail(three.view(), 9, wide.view(), three.view(), out.view())) == "fresh");
  CHECK(refused(continue_tail(two.view(), 9, {}, three.view(), out.view())) == "previous");
  CHECK(refused(continue_tail(strided, 9, {}, three.view(), out.view())) == "previous");
  CHECK(refused(continue_tail(three.view(), 9, {}, {}, out.view())) == "cached");
  CHECK(refused(continue_tail(three.view(), 9, {}, two.view(), out.view())) == "cached");
  CHECK(refused(continue_tail(three.view(), 2, {}, three.view(), out.view())) == "cached");
  CHECK(refused(continue_tail(three.view(), 3, three.view(), two.view(), out.view())) == "cached");
  CHECK(refused(continue_tail(three.view(), 9, {}, three.view(), missing)) == "out");
  CHECK(refused(continue_tail(three.view(), 3, out.view(), {}, out.view())) == "out overlaps an input");
  CHECK(refused(continue_tail(three.view(), 9, {}, out.view(), out.view())) == "out overlaps an input");
  tensor<2> untouched({3, channels});
  CHECK(same_bits(out.packed(), untouched.packed()));
}
