// SPDX-License-Identifier: Apache-2.0
#include "core/exponential.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

using hypic::exp_nonpositive;

TEST_CASE("exp_nonpositive is within 1 ulp of fp64", "[exponential]") {
  double worst = 0.0;
  auto const measure = [&](float x) {
    double const exact = std::exp(static_cast<double>(x));
    double const ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(static_cast<double>(exp_nonpositive(x)) - exact) / ulp);
  };
  for (int i = 0; i <= 870'000; ++i) measure(-1e-4f * static_cast<float>(i));
  for (float x = -1.0f; x < -1e-37f; x *= 0.999f) measure(x);
  CHECK(worst <= 1.0);
}

TEST_CASE("exp_nonpositive is 1 at 0, 0 far below and NaN of NaN", "[exponential]") {
  CHECK(exp_nonpositive(0.0f) == 1.0f);
  CHECK(exp_nonpositive(-0.0f) == 1.0f);
  CHECK(exp_nonpositive(-std::numeric_limits<float>::denorm_min()) == 1.0f);
  CHECK(exp_nonpositive(std::nextafter(-87.0f, -88.0f)) == 0.0f);
  CHECK(exp_nonpositive(-1e30f) == 0.0f);
  CHECK(exp_nonpositive(-std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(std::isnan(exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}
