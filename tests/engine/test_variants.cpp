// SPDX-License-Identifier: Apache-2.0
// The engine's forward pass against the fp64 reference, on synthetic checkpoints of every layout.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "engine/engine_test.hpp"
#include "engine/serving_test.hpp"
#include "hypic/family/gates.hpp"
#include "hypic/store/memory_store.hpp"
#include "support/model_oracle.hpp"

namespace {

using engine_test::tokens;
using hypic_engine::model_family;

constexpr double bound = 3e-4;

tokens random_tokens(std::size_t count, std::int64_t vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  tokens drawn(count);
  for (auto& token : drawn) token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary));
  return drawn;
}

/// How far full recompute of a prompt is from the reference: logits, scaled, and each layer's states, relative.
void check_against_oracle(hypic_engine::checkpoint const& weights, tokens const& prompt) {
  hypic_engine::model const runs(weights);
  hypic::memory_store nothing(0);
  hypic_engine::engine serving(runs, nothing, {});
  auto served = hypic_engine::serve(serving, {serving.fresh(prompt)});
  auto const reference = oracle::forward(weights, prompt);
  CHECK(engine_test::scaled_difference(served.result.logits, reference.logits) < bound);
  for (std::size_t l = 0; l < reference.states.size(); ++l) {
    if (reference.states[l].empty()) continue;
    auto const found = served.memory.states(static_cast<std::int32_t>(l))[0];
    std::vector<float> expected;
    for (auto const& head : reference.states[l])
      for (auto const value : head) expected.push_back(static_cast<float>(value));
    CHECK(engine_test::relative_difference({found.data, found.data + found.size()}, expected) < bound);
  }
}

TEST_CASE("full recompute meets the fp64 reference on every layout of the three families") {
  for (auto const& [name, what] : synthetic::variants()) {
    CAPTURE(name);
    auto const weights = engine_test::synthetic_checkpoint(what);
    check_against_oracle(weights, random_tokens(150, what.vocab_size, what.seed));
  }
}

TEST_CASE("and on layouts that mix what the others have one by one") {
  synthetic::options mixed{.family = model_family::gated_deltanet, .seed = 31, .hidden_size = 48};
  mixed.num_v_heads = 6;
  mixed.expand_v = 0.5;
  mixed.conv_size = 3;
  mixed.allow_neg_eigval = true;
  mixed.attention_heads = 6;
  mixed.attention_kv_heads = 3;
  mixed.qkv_bias = true;
  mixed.tie_word_embeddings = true;
  check_against_oracle(engine_test::synthetic_checkpoint(mixed), random_tokens(140, mixed.vocab_size, 1));
  mixed.family = model_family::gla;
  mixed.num_heads = 6;
  mixed.num_kv_heads = 2;
  mixed.expand_k = 0.5;
  mixed.clamp_min = -0.02;
  mixed.output_gate = false;
  check_against_oracle(engine_test::synthetic_checkpoint(mixed), random_tokens(140, mixed.vocab_size, 2));
  mixed.family = model_family::retnet;
  mixed.num_heads = 6;
  mixed.num_kv_heads = 3;
  mixed.clamp_min.reset();
  mixed.expand_k = 1;
  mixed.expand_v = 2;
  check_against_oracle(engine_test::synthetic_checkpoint(mixed), random_tokens(140, mixed.vocab_size, 3));
}

TEST_CASE("a convolution of one tap has no tail and meets the reference") {
  auto const weights = engine_test::synthetic_checkpoint(
      {.family = model_family::gated_deltanet, .seed = 5, .conv_size = 1, .attention_layers = {}});
  check_against_oracle(weights, random_tokens(40, weights.config.vocab_size, 4));
}

TEST_CASE("two shards compute what one file does") {
  engine_test::temporary_folder const folder;
  auto const made = synthetic::make({.family = model_family::gla, .seed = 6});
  auto const sharded = hypic_engine::load_checkpoint(synthetic::write_sharded(made, folder.path(), 2));
  check_against_oracle(sharded, random_tokens(60, sharded.config.vocab_size, 5));
  CHECK(hypic_engine::model(sharded).fingerprint() ==
        hypic_engine::model(engine_test::synthetic_checkpoint({.family = model_family::gla, .seed = 6})).fingerprint());
}

TEST_CASE("other weights, another config or another head length have another fingerprint") {
  auto const fingerprint = [](synthetic::options const& what, std::int32_t head_rows = 8) {
    return hypic_engine::model(engine_test::synthetic_checkpoint(what), head_rows).fingerprint();
  };
  auto const usual = fingerprint({});
  CHECK(fingerprint({}) == usual);
  CHECK(fingerprint({.seed = 2}) != usual);
  CHECK(fingerprint({.max_position_embeddings = 511}) != usual);
  CHECK(fingerprint({}, 4) != usual);
}

TEST_CASE("every length up to 70 meets the reference") {
  for (auto const family : {model_family::retnet, model_family::gla, model_family::gated_deltanet}) {
    synthetic::options const what{.family = family, .seed = 7};
    auto const weights = engine_test::synthetic_checkpoint(what);
    auto const prompt = random_tokens(70, what.vocab_size, 6);
    auto const reference = oracle::forward(weights, prompt);  // causal: one run has every prefix
    hypic_engine::model const runs(weights);
    hypic::memory_store nothing(0);
    hypic_engine::engine serving(runs, nothing, {});
    for (std::size_t length = 1; length <= prompt.size(); ++length) {
      auto const end = prompt.begin() + static_cast<std::ptrdiff_t>(length);
      auto const served = hypic_engine::serve(serving, {serving.fresh({prompt.begin(), end})});
      INFO(hypic_engine::name_of(family) << ", length " << length);
      CHECK(engine_test::scaled_difference(served.result.logits, reference.logits) < bound);
    }
  }
}

/// -exp(a_log) softplus(x) in long double, factor by factor where neither over- nor underflows there.
long double reference_gate(double a_log, double x) {
  auto const softplus = x > 0 ? x + std::log1p(std::exp(static_cast<long double>(-x)))
                              : std::log1p(std::exp(static_cast<long double>(x)));
  return -std::exp(static_cast<long double>(a_log)) * softplus;
}

TEST_CASE("[case-04] the gate of Gated DeltaNet is never NaN and meets long double") {
  static_assert(std::numeric_limits<long double>::max_exponent > std::numeric_limits<double>::max_exponent);
  for (double a_log = -100.0; a_log <= 100.0; a_log += 2.5) {
    for (double x = -200.0; x <= 200.0; x += 1.25) {
      auto const gate = hypic::softplus_log_gate(static_cast<float>(a_log), static_cast<float>(x));
      auto const expected = reference_gate(a_log, x);
      CAPTURE(a_log, x, gate);
      REQUIRE_FALSE(std::isnan(gate));
      REQUIRE(gate <= 0.0f);
      if (expected < -std::numeric_limits<float>::max()) {
        REQUIRE((std::isinf(gate) || gate < -3e38f));  // a reset
      } else if (expected > -static_cast<long double>(std::numeric_limits<float>::min())) {
        REQUIRE(gate > -2 * std::numeric_limits<float>::min());
      } else {
        REQUIRE(std::abs(gate - static_cast<double>(expected)) <= 2e-7 * std::abs(static_cast<double>(expected)));
      }
    }
  }
}

TEST_CASE("[case-04] a model whose gates are extreme gives finite logits, those of the reference") {
  for (float const a_log : {-100.0f, -3.0f, 0.0f, 60.0f, 100.0f}) {
    for (float const dt_bias : {-200.0f, -60.0f, 0.0f, 200.0f}) {
      CAPTURE(a_log, dt_bias);
      auto made = synthetic::make({.family = model_family::gated_deltanet, .seed = 8});
      for (std::string const layer : {"0", "2"}) {
        for (auto& value : made.at("model.layers." + layer + ".attn.A_log").values) value = a_log;
        for (auto& value : made.at("model.layers." + layer + ".attn.dt_bias").values) value = dt_bias;
      }
      engine_test::temporary_folder const folder;
      synthetic::write_file(made, folder / "model.safetensors");
      check_against_oracle(hypic_engine::load_checkpoint(folder.path()), random_tokens(50, 32, 7));
    }
  }
}

}  // namespace
