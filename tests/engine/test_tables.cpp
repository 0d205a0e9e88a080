// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_test.hpp"
#include "engine/tables_test.hpp"
#include "tables/prompts.hpp"

namespace {

using namespace hypic_tables;
using engine_test::data;

/// A part of the tables that takes seconds.
table_options reduced() {
  table_options options;
  options.threads = 2;
  options.exactness_texts = 1;
  options.chain_lengths = {1, 2, 4};
  options.shapes = {{8, 128}};
  return options;
}

std::vector<end_to_end_row> const& end_to_end() {
  static auto const rows = make_end_to_end(data(), reduced());
  return rows;
}

end_to_end_row const& row_of(hypic_engine::model_family family, std::string const& mode) {
  for (auto const& row : end_to_end())
    for (auto const& [name, loaded] : data().checkpoints)
      if (row.checkpoint == name && loaded.config.family == family && row.mode == mode) return row;
  throw std::runtime_error("no such row");
}

/// Whether an object has exactly these fields and no value is an object or an array.
void check_flat(nlohmann::json const& row, std::set<std::string> const& fields) {
  std::set<std::string> found;
  for (auto const& [name, value] : row.items()) {
    found.insert(name);
    CHECK(value.is_primitive());
  }
  CHECK(found == fields);
}

TEST_CASE("every exactness row meets its bound, on every checkpoint and with slowed decays") {
  auto const rows = make_exactness(data(), reduced());
  std::set<std::string> models;
  std::set<std::string> checks;
  for (auto const& row : rows) {
    CAPTURE(row.checkpoint, row.slowed, row.found.check, row.found.layer, row.found.error, row.found.bound);
    CHECK(row.found.met());
    models.insert(row.checkpoint + (row.slowed ? " slowed" : ""));
    checks.insert(row.found.check);
  }
  CHECK(models.size() == 5);  // retnet's decays are fixed
  CHECK(checks == std::set<std::string>{"first_layer_state", "recurrence", "attention", "all_fresh_logits",
                                        "whole_segment_logits", "cold_equals_warm"});
  CHECK(all_met(rows));
}

TEST_CASE("an error that is NaN meets no bound") {
  CHECK_FALSE(finding{"check", 0, std::numeric_limits<double>::quiet_NaN(), 1.0}.met());
  CHECK_FALSE(all_met({{"checkpoint", false, {"check", 0, std::numeric_limits<double>::quiet_NaN(), 1.0}}}));
}

TEST_CASE("operators compose where addition does not") {
  auto const rows = make_composition(data(), reduced());
  REQUIRE(rows.size() == (4 + 3) * 3 * 2);
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    auto const& addition = rows[i];
    auto const& operators = rows[i + 1];
    CAPTURE(addition.family, addition.inputs, addition.segments, addition.error, operators.error);
    REQUIRE(addition.mode == "addition");
    REQUIRE(operators.mode == "operator");
    CHECK(operators.error <= 1e-5);
    if (addition.segments > 1) CHECK(addition.error >= 1e3 * operators.error);
  }
}

TEST_CASE("turned operators cut addition's divergence on retnet a hundredfold, and the seam cuts it further") {
  using enum hypic_engine::model_family;
  auto const addition = row_of(retnet, "addition").kl;
  auto const rotate = row_of(retnet, "operator_rotate").kl;
  auto const seam = row_of(retnet, "operator_rotate_seam").kl;
  CAPTURE(addition, rotate, seam);
  CHECK(rotate * 100.0 <= addition);
  CHECK(seam < rotate);
}

TEST_CASE("each step of the method brings a served prompt closer to full recompute") {
  using enum hypic_engine::model_family;
  for (auto const family : {retnet, gla, gated_deltanet}) {
    auto const& full = row_of(family, "full");
    auto const& prefix = row_of(family, "prefix");
    auto const& addition = row_of(family, "addition");
    auto const& rotate = row_of(family, "operator_rotate");
    auto const& seam = row_of(family, "operator_rotate_seam");
    CAPTURE(full.checkpoint);
    CHECK(full.kl == 0.0);
    CHECK(full.ttft_of_full == 1.0);
    CHECK(prefix.kl <= 1e-6);
    CHECK(row_of(family, "operator").kl <= addition.kl);
    CHECK(rotate.kl <= addition.kl);
    CHECK(rotate.kl <= row_of(family, "operator").kl);
    CHECK(rotate.state_error <= addition.state_error);
    CHECK(full.tokens_forwarded == 8 * 128 + 128);
    CHECK(prefix.tokens_forwarded <= full.tokens_forwarded);
    CHECK(rotate.tokens_forwarded == 128);
    CHECK(seam.tokens_forwarded == 128 + 7 * 8);  // nothing precedes the first document
  }
}

TEST_CASE("the JSON is arrays of flat objects with all fields, beside a header") {
  exactness_row const exact{"a", true, {"recurrence", 2, 1e-7, 1e-5}};
  exactness_row const whole{"a", false, {"cold_equals_warm", -1, 0.0, 0.0}};
  composition_row const composed{"gla", "random", 2, "operator", 1.0 / 3.0};
  end_to_end_row served;
  served.checkpoint = "quote \" backslash \\ line \n";
  served.kl = std::numeric_limits<double>::quiet_NaN();
  std::vector const arrays{listed(std::vector{exact, whole}), listed(std::vector{composed}),
                           listed(std::vector{served})};
  auto const read =
      nlohmann::json::parse(json_text({{"version", std::string("1")}, {"seed", std::int64_t{7}}}, arrays));

  CHECK(read.size() == 4);
  check_flat(read.at("header"), {"version", "seed"});
  for (auto const& row : read.at("exactness"))
    check_flat(row, {"checkpoint", "slowed", "check", "layer", "error", "bound"});
  check_flat(read.at("composition").at(0), {"family", "inputs", "segments", "mode", "error"});
  check_flat(read.at("end_to_end").at(0),
             {"checkpoint", "segments", "segment_tokens", "mode", "kl", "top1", "nll_full", "nll", "state_error",
              "tokens_forwarded", "ttft_ms", "cold_ms", "ttft_of_full", "cold_of_full"});
  CHECK(read.at("exactness").at(0).at("layer") == 2);
  CHECK(read.at("exactness").at(1).at("layer").is_null());
  CHECK(read.at("composition").at(0).at("error") == 1.0 / 3.0);
  CHECK(read.at("end_to_end").at(0).at("checkpoint") == served.checkpoint);
  CHECK(read.at("end_to_end").at(0).at("kl").is_null());
}

TEST_CASE("tables are aligned, and mark what misses its bound") {
  std::vector<exactness_row> rows{{"gla-x", false, {"recurrence", 0, 1e-7, 1e-5}},
                                  {"gla-x", false, {"recurrence", 1, 1e-3, 1e-5}},
                                  {"gla-x", false, {"attention", 3, 1e-7, 1e-5}}};
  auto const table = shown_exactness(rows);
  REQUIRE(table.rows.size() == 2);
  CHECK(table.rows[0] == std::vector<std::string>{"recurrence", "1.0e-05", "1.0e-03 !", "FAIL"});
  CHECK(table.rows[1] == std::vector<std::string>{"attention", "1.0e-05", "1.0e-07", "pass"});
  for (auto const& text : {terminal_text(table), markdown_text(table)}) {
    CAPTURE(text);
    std::set<std::size_t> widths;
    std::size_t lines = 0;
    for (std::size_t at = text.find(text[0] == '#' ? "|" : "check"); at < text.size(); ++lines) {
      auto const end = text.find('\n', at);
      widths.insert(end - at);
      at = end + 1;
    }
    CHECK(lines == 4);
    CHECK(widths.size() == 1);
  }
}

TEST_CASE("document prompts are cut without overlap, shuffled, and the same for the same seed") {
  text const numbered{"numbered", [] {
                        token_list tokens(1200);
                        for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
                        return tokens;
                      }()};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto const prompt = make_document_prompt(numbered, 4, 250, 100, seed);
    std::set<std::int32_t> seen(prompt.query.begin(), prompt.query.end());
    bool follows = false;
    for (auto const& document : prompt.documents) {
      seen.insert(document.begin(), document.end());
      follows = follows || document.back() + 1 == prompt.query.front();
    }
    CHECK(seen.size() == 1100);
    CHECK(follows);
    std::vector<std::int32_t> starts;
    for (auto const i : prompt.unshuffled) starts.push_back(prompt.documents.at(i).front());
    CHECK(std::is_sorted(starts.begin(), starts.end()));
    CHECK_FALSE(std::is_sorted(prompt.unshuffled.begin(), prompt.unshuffled.end()));
    CHECK(make_document_prompt(numbered, 4, 250, 100, seed).documents == prompt.documents);
  }
  CHECK(make_document_prompt(numbered, 4, 250, 100, 1).documents !=
        make_document_prompt(numbered, 4, 250, 100, 2).documents);
}

TEST_CASE("a text shorter than its documents together is cut with overlap, one shorter than a document refused") {
  text const brief{"brief", token_list(300, 65)};
  auto const prompt = make_document_prompt(brief, 4, 200, 50, 1);
  CHECK(prompt.documents.size() == 4);
  CHECK(prompt.query.size() == 50);
  auto const words = engine_test::refusal([&] { make_document_prompt(brief, 2, 400, 50, 1); });
  CHECK(words.find("300") != std::string::npos);
}

TEST_CASE("a folder without texts or checkpoints is refused") {
  engine_test::temporary_folder const empty;
  CHECK(engine_test::refusal([&] { load_data(empty.path()); }).find("*.txt") != std::string::npos);
  CHECK(engine_test::refusal([&] { load_data(empty / "absent"); }).find("absent") != std::string::npos);
}

}  // namespace
