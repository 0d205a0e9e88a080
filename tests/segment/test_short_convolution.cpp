// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/short_convolution.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "hypic/algebra/tail.hpp"
#include "support/layer_data.hpp"
#include "support/random_tensor.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

using runs = std::vector<convolution_run>;

struct inputs {
  tensor<2> raw;
  tensor<2> weight;
  tensor<3> tails;
};

inputs random_inputs(std::int64_t rows, std::int64_t channels, std::int64_t length, std::int64_t tails,
                     layout how = layout::dense) {
  return {random_tensor<2>({rows, channels}, 1, 2.0f, how), random_tensor<2>({channels, length}, 2, 1.0f, how),
          random_tensor<3>({tails, length - 1, channels}, 3, 2.0f, how)};
}

tensor<2> convolved(inputs const& in, runs const& over, int threads = 1, layout how = layout::dense) {
  tensor<2> out(in.raw.view().extent, how);
  REQUIRE(short_convolution(in.raw.view(), in.weight.view(), in.tails.view(), over, out.view(), {.threads = threads}) ==
          status::ok);
  CHECK(out.gaps_intact());
  return out;
}

// The convolution's definition in fp64, for one run.
std::vector<double> exact(inputs const& in, convolution_run const& run) {
  auto const channels = in.raw.view().extent[1];
  auto const length = in.weight.view().extent[1];
  std::vector<double> out;
  for (std::int64_t t = 0; t < run.rows; ++t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0.0;
      for (std::int64_t back = 0; back < length; ++back) {
        double input = 0.0;
        if (t >= back) {
          input = static_cast<double>(in.raw.view()(run.first_row + t - back, c));
        } else if (run.tail >= 0) {
          input = static_cast<double>(in.tails.view()(run.tail, length - 1 + t - back, c));
        }
        sum += static_cast<double>(in.weight.view()(c, length - 1 - back)) * input;
      }
      out.push_back(sum / (1.0 + std::exp(-sum)));
    }
  }
  return out;
}

std::vector<float> rows_of(tensor<2> const& from, std::int64_t first, std::int64_t count) {
  return gather(from.view().rows(first, count));
}

}  // namespace

TEST_CASE("a short convolution equals its fp64 definition to 1e-6", "[short_convolution]") {
  for (std::int64_t const length : {1, 2, 3, 4, 7}) {
    for (std::int64_t const channels : {1, 5, 32, 33, 100}) {
      for (auto const how : {layout::dense, layout::gaps}) {
        CAPTURE(length, channels, static_cast<int>(how));
        auto const in = random_inputs(60, channels, length, 3, how);
        runs const over = {{0, 1, 2}, {1, 0, 0}, {1, 2, -1}, {3, 17, 0}, {20, 40, 1}};
        auto const out = convolved(in, over, 1, how);
        for (auto const& run : over) {
          CHECK(relative_error(rows_of(out, run.first_row, run.rows), exact(in, run)) <= 1e-6);
        }
      }
    }
  }
}

TEST_CASE("weight j of K multiplies the input K-1-j steps back", "[short_convolution]") {
  inputs in{tensor<2>({4, 1}), tensor<2>({1, 3}), tensor<3>({1, 2, 1})};
  in.raw.fill(0.0f);
  in.tails.fill(0.0f);
  in.raw.view()(0, 0) = 1.0f;
  for (int j = 0; j < 3; ++j) in.weight.view()(0, j) = 100.0f * static_cast<float>(j + 1);
  auto const out = convolved(in, {{0, 4, 0}});
  CHECK(out.view()(0, 0) == 300.0f);
  CHECK(out.view()(1, 0) == 200.0f);
  CHECK(out.view()(2, 0) == 100.0f);
  CHECK(out.view()(3, 0) == 0.0f);
}

TEST_CASE("silu neither overflows nor loses small results", "[short_convolution]") {
  std::vector<float> const x = {0.0f, -0.0f, 1e-30f, -1e-30f, 20.0f, -20.0f, 80.0f, -80.0f, 3e38f, -3e38f, 0.5f, -5.0f};
  inputs in{tensor<2>({static_cast<std::int64_t>(x.size()), 1}), tensor<2>({1, 1}), tensor<3>()};
  for (std::size_t i = 0; i < x.size(); ++i) in.raw.view()(i, 0) = x[i];
  in.weight.fill(1.0f);
  auto const out = convolved(in, {{0, static_cast<std::int64_t>(x.size()), -1}});
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    double const wanted = static_cast<double>(x[i]) / (1.0 + std::exp(-static_cast<double>(x[i])));
    CHECK(static_cast<double>(out.view()(i, 0)) == Approx(wanted).epsilon(1e-6).margin(1e-36));
  }
}

TEST_CASE("a missing tail is a tail of zeros", "[short_convolution]") {
  auto in = random_inputs(9, 5, 4, 1);
  in.tails.fill(0.0f);
  CHECK(same_bits(convolved(in, {{0, 9, -1}}).packed(), convolved(in, {{0, 9, 0}}).packed()));
}

TEST_CASE("segments of 0 to 4 tokens, each from the tail before it, are convolved to the bits of one long run",
          "[short_convolution][case-13]") {
  constexpr std::int64_t channels = 3;
  for (std::int64_t const length : {1, 2, 4, 6}) {
    for (std::int64_t chain = 0; chain < 625; ++chain) {
      CAPTURE(length, chain);
      auto in = random_inputs(16, channels, length, 5);
      auto const whole = convolved(in, {{0, 16, -1}});

      runs over;
      in.tails.fill(0.0f);
      std::int64_t start = 0;
      for (std::int64_t rest = chain, i = 0; i < 4; rest /= 5, ++i) {
        auto const tokens = rest % 5;
        over.push_back({start, tokens, i});
        REQUIRE(continue_tail(in.tails.view()[i], tokens, in.raw.view().rows(start, tokens), {},
                              in.tails.view()[i + 1]) == status::ok);
        start += tokens;
      }
      over.push_back({start, 16 - start, 4});
      REQUIRE(same_bits(convolved(in, over).packed(), whole.packed()));
    }
  }
}

TEST_CASE("a run's bits depend neither on its batch nor on the number of threads", "[short_convolution]") {
  auto const in = random_inputs(64 * 19, 70, 4, 64);
  auto const alone = rows_of(convolved(in, {{0, 19, 0}}), 0, 19);
  for (std::int64_t const batch : {2, 7, 64}) {
    runs over;
    for (std::int64_t i = 0; i < batch; ++i) over.push_back({19 * i, 19, i});
    auto const one = convolved(in, over);
    CHECK(same_bits(rows_of(one, 0, 19), alone));
    for (int const threads : {2, 3}) CHECK(same_bits(convolved(in, over, threads).packed(), one.packed()));
  }
}

TEST_CASE("rows of no run are left alone, and no rows are fine", "[short_convolution]") {
  auto const in = random_inputs(6, 4, 3, 1);
  auto const out = convolved(in, {{2, 1, 0}});
  CHECK(all_finite(rows_of(out, 2, 1)));
  for (std::int64_t const row : {0, 1, 3, 5}) CHECK(std::isnan(out.view()(row, 0)));

  inputs const none{tensor<2>({0, 4}), in.weight, in.tails};
  convolved(none, {});
  convolved(none, {{0, 0, 0}, {0, 0, -1}});
}

TEST_CASE("a misused convolution is refused by name and writes nothing", "[short_convolution]") {
  auto const in = random_inputs(6, 4, 3, 2);
  tensor<2> out({6, 4});
  auto const refused = [&](status::code code, inputs const& from, runs const& over, tensor_view<float, 2> to,
                           int threads = 1) -> std::string {
    auto const outcome =
        short_convolution(from.raw.view(), from.weight.view(), from.tails.view(), over, to, {.threads = threads});
    CHECK(outcome == code);
    return outcome.argument();
  };
  auto const whole = runs{{0, 6, 0}};
  auto const shape = status::invalid_shape;
  auto const range = status::out_of_range;
  CHECK(refused(shape, {in.raw, tensor<2>({4, 0}), in.tails}, whole, out.view()) == "weight");
  CHECK(refused(shape, {in.raw, random_tensor<2>({5, 3}, 4), in.tails}, whole, out.view()) == "weight");
  CHECK(refused(shape, {in.raw, in.weight, random_tensor<3>({2, 3, 4}, 5)}, whole, out.view()) == "tails");
  CHECK(refused(shape, {tensor<2>({6, 4}, layout::transposed), in.weight, in.tails}, whole, out.view()) == "raw");
  CHECK(refused(shape, in, whole, out.view().rows(0, 5)) == "out");
  CHECK(refused(range, in, {{-1, 2, 0}}, out.view()) == "runs.first_row");
  CHECK(refused(range, in, {{7, 0, 0}}, out.view()) == "runs.first_row");
  CHECK(refused(range, in, {{0, -1, 0}}, out.view()) == "runs.rows");
  CHECK(refused(range, in, {{0, 2, 0}, {5, 2, 0}}, out.view()) == "runs.rows");
  CHECK(refused(range, in, {{0, 6, 2}}, out.view()) == "runs.tail");
  CHECK(refused(range, in, {{0, 6, -2}}, out.view()) == "runs.tail");
  CHECK(refused(range, in, {{3, 3, 0}, {0, 4, 1}}, out.view()) == "runs: two that share a row");
  auto raw = in;
  CHECK(refused(shape, raw, whole, raw.raw.view()) == "out overlaps an input");
  CHECK(same_bits(raw.raw.packed(), in.raw.packed()));
  CHECK(refused(status::invalid_argument, in, whole, out.view(), 0) == "ex.threads");
  tensor<2> untouched({6, 4});
  CHECK(same_bits(out.packed(), untouched.packed()));
}
