// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/engine_test.hpp"
#include "engine/modes.hpp"
#include "engine/serving_test.hpp"

namespace {

using engine_test::difference;
using engine_test::models_under_test;
using engine_test::same_bits;
using engine_test::text_tokens;
using hypic_engine::all_modes;
using hypic_engine::document_prompt;
using hypic_engine::mode;
using hypic_engine::mode_comparison;
using hypic_engine::mode_outcome;

document_prompt shuffled_prompt() {
  return {{text_tokens("ruth.txt", 0, 50), text_tokens("james.txt", 0, 40), text_tokens("jonah.txt", 0, 60)},
          {0, 2, 1},
          text_tokens("esther.txt", 0, 24)};
}

mode_outcome const& outcome_of(std::vector<mode_outcome> const& all, mode which) {
  return all.at(static_cast<std::size_t>(which));
}

TEST_CASE("every mode is scored, in one order, and full against itself is perfect") {
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    auto const prompt = shuffled_prompt();
    auto const outcomes = mode_comparison(at.weights, 8, 1).run(prompt);
    REQUIRE(outcomes.size() == all_modes.size());
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      auto const& o = outcomes[i];
      CHECK(o.which == all_modes[i]);
      CHECK(o.kl >= -1e-12);
      CHECK((o.top1 >= 0.0 && o.top1 <= 1.0));
      CHECK(o.nll > 0.0);
      CHECK(o.nll_full == outcomes[0].nll_full);
      CHECK(o.state_error >= 0.0);
      CHECK(o.ttft_ms > 0.0);
      CHECK(o.cold_ms > 0.0);
      CHECK(o.logits.rows() == 24);
    }
    auto const& full = outcome_of(outcomes, mode::full);
    CHECK(full.kl == 0.0);
    CHECK(full.top1 == 1.0);
    CHECK(full.nll == full.nll_full);
    CHECK(full.state_error == 0.0);
  }
}

TEST_CASE("full and prefix agree to 1e-4; the others forward no more than they must") {
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    auto const outcomes = mode_comparison(at.weights, 6, 1).run(shuffled_prompt());
    auto const& full = outcome_of(outcomes, mode::full);
    auto const& prefix = outcome_of(outcomes, mode::prefix);
    CHECK(difference(prefix.logits, full.logits) < 1e-4);
    CHECK(prefix.state_error < 1e-4);
    CHECK(full.tokens_forwarded == 174);
    CHECK(prefix.tokens_forwarded == 124);  // the first document stands where it stood
    for (auto const which : {mode::addition, mode::operator_only, mode::operator_rotate})
      CHECK(outcome_of(outcomes, which).tokens_forwarded == 24);
    CHECK(outcome_of(outcomes, mode::operator_rotate_seam).tokens_forwarded == 24 + 2 * 6);
  }
}

TEST_CASE("a seam as long as every document makes the last mode exact") {
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    auto const outcomes = mode_comparison(at.weights, 60, 2).run(shuffled_prompt());
    auto const& seam = outcome_of(outcomes, mode::operator_rotate_seam);
    CHECK(difference(seam.logits, outcome_of(outcomes, mode::full).logits) < 2e-4);
    CHECK(seam.state_error < 1e-4);
    CHECK(seam.kl < 1e-6);
  }
}

TEST_CASE("without a seam the last mode is the one before it") {
  auto const& at = models_under_test().front();
  auto const outcomes = mode_comparison(at.weights, 0, 1).run(shuffled_prompt());
  auto const& rotated = outcome_of(outcomes, mode::operator_rotate);
  CHECK(same_bits(outcome_of(outcomes, mode::operator_rotate_seam).logits, rotated.logits));
}

TEST_CASE("a document that begins the prompt is exact in every mode") {
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    document_prompt const prompt{{text_tokens("ruth.txt", 0, 70)}, {0}, text_tokens("james.txt", 0, 10)};
    auto const outcomes = mode_comparison(at.weights, 8, 1).run(prompt);
    for (auto const& o : outcomes) {  // its local positions are the true ones, and a sum of one is exact
      CAPTURE(name_of(o.which));
      CHECK(difference(o.logits, outcomes[0].logits) < 2e-4);
      CHECK(o.state_error < 1e-4);
    }
  }
}

TEST_CASE("the scores are those of their definitions, computed once more from the logits") {
  auto const& at = models_under_test().front();
  auto const prompt = shuffled_prompt();
  auto const outcomes = mode_comparison(at.weights, 8, 1).run(prompt);
  auto const probabilities = [](mode_outcome const& o, std::int64_t row) {
    auto const logits = engine_test::row_of(o.logits, row);
    std::vector<double> p;
    double sum = 0.0;
    for (auto const logit : logits) sum += p.emplace_back(std::exp(static_cast<double>(logit)));
    for (auto& value : p) value /= sum;
    return p;
  };
  for (auto const& o : outcomes) {
    double kl = 0.0;
    double nll = 0.0;
    for (std::int64_t row = 0; row < 24; ++row) {
      auto const full = probabilities(outcomes[0], row);
      auto const mine = probabilities(o, row);
      for (std::size_t v = 0; v < full.size(); ++v) kl += full[v] * std::log(full[v] / mine[v]);
      if (row < 23) nll -= std::log(mine[static_cast<std::size_t>(prompt.query[static_cast<std::size_t>(row + 1)])]);
    }
    CHECK(o.kl == Approx(kl / 24).margin(1e-10));
    CHECK(o.nll == Approx(nll / 23).epsilon(1e-9));
  }
}

TEST_CASE("empty and one-token queries and documents have no score where there is none to have") {
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    mode_comparison const comparison(at.weights, 8, 1);
    auto prompt = shuffled_prompt();
    prompt.query.clear();
    for (auto const& o : comparison.run(prompt)) {
      CAPTURE(name_of(o.which));
      CHECK((std::isnan(o.kl) && std::isnan(o.top1) && std::isnan(o.nll) && std::isnan(o.nll_full)));
      CHECK(std::isfinite(o.state_error));
      CHECK(o.logits.rows() == 0);
    }
    prompt.query = {65};
    prompt.documents = {{}, {66}, prompt.documents[0], prompt.documents[0]};
    prompt.unshuffled = {3, 1, 0, 2};
    for (auto const& o : comparison.run(prompt)) {
      CAPTURE(name_of(o.which));
      CHECK((std::isfinite(o.kl) && std::isfinite(o.top1) && std::isfinite(o.state_error)));
      CHECK((std::isnan(o.nll) && std::isnan(o.nll_full)));
      CHECK(o.logits.rows() == 1);
    }
  }
}

TEST_CASE("a comparison refuses an empty prompt and one beyond the context") {
  auto const& at = models_under_test().front();
  mode_comparison const comparison(at.weights, 8, 1);
  CHECK_THAT(engine_test::refusal([&] { comparison.run({{{}}, {0}, {}}); }), Catch::Contains("expected at least 1"));
  std::vector<std::int32_t> const long_text(static_cast<std::size_t>(at.weights.config.max_position_embeddings), 65);
  CHECK_THAT(engine_test::refusal([&] {
               comparison.run({{long_text}, {0}, {65}});
             }),
             Catch::Contains("expected at most"));
}

}  // namespace
