// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/parallel.hpp"
#include "core/shapes.hpp"
#include "hypic/core/status.hpp"

using namespace hypic;

TEST_CASE("Ranges share a row exactly where a row lies in two of them", "[core]") {
  std::mt19937_64 random(5);
  int shared = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges(random() % 6);
    std::int64_t end = 0;
    for (auto& [first, rows] : ranges) {  // packed ones now and then, as most are
      rows = static_cast<std::int64_t>(random() % 4);
      first = round % 2 == 0 ? static_cast<std::int64_t>(random() % 12) : std::exchange(end, end + rows);
    }
    std::vector<int> seen(20);
    bool twice = false;
    for (auto const& [first, rows] : ranges)
      for (auto row = first; row < first + rows; ++row) twice = ++seen[static_cast<std::size_t>(row)] > 1 || twice;
    CAPTURE(round);
    REQUIRE(share_no_row(static_cast<std::int64_t>(ranges.size()),
                         [&](std::int64_t i) { return ranges[static_cast<std::size_t>(i)]; }) != twice);
    shared += twice ? 1 : 0;
  }
  CHECK(shared > 200);
  CHECK(shared < 1000);
}

TEST_CASE("An output whose stride is 0 is refused by its dimension, an input and a single row are not", "[core]") {
  float memory[8]{};
  tensor_view<float, 2> out{memory, {4, 2}, {0, 1}};
  CHECK(message(expect_shape("o", out, {4, 2})) == "invalid_shape: o.stride[0] has a shape that does not fit");
  CHECK(expect_shape("k", tensor_view<float const, 2>(out), {4, 2}) == status::ok);
  out.extent[0] = 1;
  CHECK(expect_shape("o", out, {1, 2}) == status::ok);
}

TEST_CASE("An extent below its least is reported by its dimension", "[core]") {
  float memory[8]{};
  CHECK(message(expect_extent("caches.keys", dense_view(memory, 4, 2), 0, 5)) ==
        "invalid_shape: caches.keys.extent[0] is 4, expected at least 5");
  CHECK(expect_extent("caches.keys", dense_view(memory, 4, 2), 1, 2) == status::ok);
}

TEST_CASE("Workers are bounded whatever the number of threads", "[core]") {
  CHECK(workers_of(std::numeric_limits<int>::min()) == 1);
  CHECK(workers_of(7) == 7);
  CHECK(workers_of(std::numeric_limits<int>::max()) == 1024);
}
