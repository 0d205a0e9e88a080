// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "hypic/algebra/summary.hpp"
#include "hypic/core/status.hpp"

using namespace hypic;

TEST_CASE("A message names what was found and what was expected", "[core]") {
  CHECK(message(status::ok) == "ok");
  CHECK(message({status::invalid_argument, "host"}) == "invalid_argument: host has no meaning here");
  status const shape{status::invalid_shape, "q", 15, status::relation::equal_to, 16};
  CHECK(message(shape) == "invalid_shape: q is 15, expected equal to 16");
  CHECK(message(shape.in(status::measure::extent, 2)) == "invalid_shape: q.extent[2] is 15, expected equal to 16");
  CHECK(message(shape.in(status::measure::stride, 0)) == "invalid_shape: q.stride[0] is 15, expected equal to 16");
  CHECK(shape.in(status::measure::extent, 2) == shape);
}

TEST_CASE("A shape that does not fit is reported by its dimension", "[core]") {
  state_dims const dims{1, 2, 4, 3};
  std::vector<float> memory(64);
  auto const outcome = [&](summary_view out) { return message(set_identity<gla>(dims, out, {})); };
  summary_view const good{dense_view(memory.data(), 2, 4), dense_view(memory.data() + 8, 2, 4, 3)};
  CHECK(outcome(good) == "ok");

  auto wide = good;
  wide.end_states.extent[2] = 5;
  CHECK(outcome(wide) == "invalid_shape: out.end_states.extent[2] is 5, expected equal to 3");
  auto few = good;
  few.operators.extent[0] = 1;
  CHECK(outcome(few) == "invalid_shape: out.operators.extent[0] is 1, expected equal to 2");
  auto negative = good;
  negative.operators.extent[1] = -4;
  CHECK(outcome(negative) == "invalid_shape: out.operators.extent[1] is -4, expected at least 0");
  auto strided = good;
  strided.end_states.stride[2] = 2;
  CHECK(outcome(strided) == "invalid_shape: out.end_states.stride[2] is 2, expected equal to 1");
  auto missing = good;
  missing.end_states.data = nullptr;
  CHECK(outcome(missing) == "invalid_shape: out.end_states has a shape that does not fit");
}
