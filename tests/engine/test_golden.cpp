// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "engine/safetensors.hpp"
#include "engine/serving_test.hpp"
#include "hypic/store/memory_store.hpp"
#include "support/model_oracle.hpp"

namespace {

using engine_test::logit_rows;
using engine_test::tokens;

/// Logits that a reference of another author made with the shipped checkpoints.
struct golden {
  tokens prompt;
  std::int64_t first = 0;  // the first position that has logits
  logit_rows logits;
};

golden read_golden(hypic_engine::safetensors const& file, std::string const& number) {
  golden read;
  read.prompt = to_int32(file.at("tokens." + number));
  read.first = to_int32(file.at("first." + number)).at(0);
  auto const& stored = file.at("logits." + number);
  auto const values = to_float32(stored);
  auto const width = static_cast<std::ptrdiff_t>(stored.shape.at(1));
  for (auto row = values.begin(); row != values.end(); row += width) read.logits.emplace_back(row, row + width);
  return read;
}

double largest_difference(logit_rows const& found, std::int64_t first, logit_rows const& expected) {
  double most = 0.0;
  for (std::size_t row = 0; row < expected.size(); ++row) {
    for (std::size_t v = 0; v < expected[row].size(); ++v) {
      auto const apart = std::abs(found.at(static_cast<std::size_t>(first) + row).at(v) - expected[row][v]);
      if (!(apart <= most)) most = std::isnan(apart) ? INFINITY : apart;
    }
  }
  return most;
}

logit_rows rows_of(hypic_engine::buffer const& logits) {
  logit_rows rows;
  for (std::int64_t row = 0; row < logits.rows(); ++row)
    rows.emplace_back(&logits.view()(row, 0), &logits.view()(row, 0) + logits.width());
  return rows;
}

TEST_CASE("full recompute and the oracle meet the golden logits of every shipped checkpoint") {
  for (auto const& [name, weights, runs] : engine_test::models_under_test()) {
    auto const file = hypic_engine::safetensors::read(std::string(HYPIC_ENGINE_DATA) + "/" + name +
                                                      "-hybrid-3.8m.golden.safetensors");
    hypic::memory_store nothing(0);
    hypic_engine::engine serving(runs, nothing, {});
    for (std::string const number : {"0", "1", "2"}) {
      CAPTURE(name, number);
      auto const expected = read_golden(file, number);
      REQUIRE(expected.logits.size() == expected.prompt.size() - static_cast<std::size_t>(expected.first));

      auto const served = hypic_engine::serve(serving, {serving.fresh(expected.prompt)});
      CHECK(largest_difference(rows_of(served.result.logits), expected.first, expected.logits) < 3e-4);
      auto const reference = oracle::forward(weights, expected.prompt);
      CHECK(largest_difference(reference.logits, expected.first, expected.logits) < 1e-5);
    }
  }
}

}  // namespace
