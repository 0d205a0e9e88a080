// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine_test.hpp"
#include "engine/files.hpp"
#include "engine/tables_test.hpp"
#include "tables/figures.hpp"
#include "tables/prompts.hpp"

namespace {

using namespace hypic_tables;
using engine_test::data;
namespace fs = std::filesystem;

table_options reduced() {
  table_options options;
  options.threads = 2;
  options.evidence_texts = 1;
  options.evidence_shape = {3, 80};
  options.query_tokens = 32;
  return options;
}

evidence const& cached() {
  static auto const made = make_evidence(data(), reduced(), document_use::cached);
  return made;
}

bool is_attention(std::string const& checkpoint, std::int32_t layer) {
  for (auto const& [name, loaded] : data().checkpoints)
    if (name == checkpoint) return hypic_engine::is_attention_layer(loaded.config, layer);
  throw std::invalid_argument(checkpoint);
}

TEST_CASE("with every document fresh nothing drifts, at any layer, distance or seam") {
  auto const fresh = make_evidence(data(), reduced(), document_use::fresh);
  CHECK(fresh.drift.size() == cached().drift.size());
  CHECK(fresh.distances.size() == cached().distances.size());
  CHECK(fresh.seam.size() == cached().seam.size());
  for (auto const& row : fresh.drift) {
    CAPTURE(row.checkpoint, row.layer, row.part);
    CHECK(row.error <= 1e-5);
  }
  for (auto const& row : fresh.distances) {
    CAPTURE(row.checkpoint, row.layer, row.distance);
    CHECK(row.hidden_error <= 1e-5);
    if (is_attention(row.checkpoint, row.layer)) CHECK(row.attention_error <= 1e-5);
  }
  for (auto const& row : fresh.seam) CHECK(row.kl <= 1e-5);
}

TEST_CASE("every checkpoint has every seam, and every layer every distance") {
  for (auto const& [name, loaded] : data().checkpoints) {
    CAPTURE(name);
    std::vector<std::int32_t> seams;
    for (auto const& row : cached().seam)
      if (row.checkpoint == name) seams.push_back(row.seam_rows);
    CHECK(seams == std::vector<std::int32_t>{0, 1, 2, 3, 4, 8, 16});
    std::vector<std::vector<std::int64_t>> distances(static_cast<std::size_t>(loaded.config.layers));
    for (auto const& row : cached().distances) {
      if (row.checkpoint != name) continue;
      distances.at(static_cast<std::size_t>(row.layer)).push_back(row.distance);
      CHECK(row.hidden_error > 0.0);
      CHECK(std::isnan(row.attention_error) == !is_attention(name, row.layer));
    }
    for (auto const& of_layer : distances) CHECK(of_layer == std::vector<std::int64_t>{0, 1, 2, 4, 8, 16, 32, 64});
  }
}

TEST_CASE("the divergence of a seam is that of serving the same prompt with it") {
  auto const options = reduced();
  auto const [segments, tokens] = options.evidence_shape;
  auto const prompt = make_document_prompt(data().texts.front(), segments, tokens, options.query_tokens, options.seed);
  for (auto const& [name, loaded] : data().checkpoints) {
    for (auto const& row : cached().seam) {
      if (row.checkpoint != name || row.seam_rows % 8 != 0) continue;
      CAPTURE(name, row.seam_rows);
      // Its records keep fewer rows, so that sums are cut elsewhere.
      auto const outcomes = hypic_engine::mode_comparison(loaded, row.seam_rows, 2).run(prompt);
      CHECK(row.kl == Approx(outcomes.back().kl).epsilon(1e-2));
    }
  }
}

TEST_CASE("each layer drifts in the parts that it has, and the first one's state in none") {
  for (auto const& [name, loaded] : data().checkpoints) {
    hypic_engine::model const with(loaded);
    for (std::size_t l = 0; l < with.layout().layers.size(); ++l) {
      CAPTURE(name, l);
      std::set<std::string> parts;
      for (auto const& row : cached().drift) {
        if (row.checkpoint != name || row.layer != static_cast<std::int32_t>(l)) continue;
        CHECK(parts.insert(row.part).second);
        CHECK(std::isfinite(row.error));
        // With a seam as long as the convolution nothing of the first layer's input is another's.
        if (l == 0 && row.part.ends_with("_seam")) CHECK(row.error <= 1e-5);
      }
      bool const linear = std::holds_alternative<hypic::linear_layer>(with.layout().layers[l]);
      CHECK(parts ==
            (linear ? std::set<std::string>{"state", "state_seam", "state_no_attention", "state_no_attention_seam"}
                    : std::set<std::string>{"keys", "values", "attention"}));
    }
  }
}

TEST_CASE("before the first attention layer, attention makes no difference to states, nor to its keys and values") {
  for (auto const& [name, loaded] : data().checkpoints) {
    hypic_engine::model const with(loaded);
    auto const& layers = with.layout().layers;
    auto const first =
        std::find_if(layers.begin(), layers.end(),
                     [](auto const& layer) { return std::holds_alternative<hypic::attention_layer>(layer); }) -
        layers.begin();
    auto const error = [&checkpoint = name](std::int32_t layer, std::string const& part) {
      for (auto const& row : cached().drift)
        if (row.checkpoint == checkpoint && row.layer == layer && row.part == part) return row.error;
      return std::nan("");
    };
    for (std::int32_t layer = 0; layer < first; ++layer)
      CHECK(error(layer, "state") == error(layer, "state_no_attention"));
    CHECK(error(static_cast<std::int32_t>(first), "keys") <= 1e-5);
    CHECK(error(static_cast<std::int32_t>(first), "values") <= 1e-5);
    CHECK(error(static_cast<std::int32_t>(first), "attention") > 1e-3);
  }
}

TEST_CASE("families list what a record costs, and rows what it costs without an operator") {
  auto const rows = run_families(1);
  REQUIRE(rows.size() == 8);
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    CAPTURE(rows[i].family);
    CHECK(rows[i + 1].form == "rows");
    CHECK(rows[i].bytes < rows[i + 1].bytes);
    CHECK(rows[i].flop < rows[i + 1].flop);
    CHECK(rows[i].time_over_retnet > 0.0);
  }
  CHECK(rows[0].time_over_retnet == 1.0);
  // Four heads: W = 8 rows of k, v and a gate, S0 of 64 x 64 and one decay, each part rounded up to 64 bytes.
  CHECK(rows[0].bytes == 4 * (8 * 64 * 4) + 4 * ((64 * 64 + 8 * 64 + 1 + 8) * 4 + 28));
}

TEST_CASE("the evidence's JSON is arrays of flat objects with all fields") {
  std::vector const drift{drift_row{"a", 1, "state", 0.25}};
  std::vector const seam{seam_row{"a", 4, 0.5}};
  std::vector const distances{distance_row{"a", 2, 16, 0.125, std::nan("")}};
  std::vector const families{family_row{"gla", "rows", 7, 9, std::nan("")}};
  std::array const arrays{listed(drift), listed(seam, distances), listed(families)};
  auto const read = nlohmann::json::parse(json_text({}, arrays));
  CHECK(read.at("drift") ==
        nlohmann::json::array({{{"checkpoint", "a"}, {"layer", 1}, {"part", "state"}, {"error", 0.25}}}));
  CHECK(read.at("seam") == nlohmann::json::array({{{"checkpoint", "a"}, {"w", 4}, {"kl", 0.5}},
                                                  {{"checkpoint", "a"},
                                                   {"layer", 2},
                                                   {"distance", 16},
                                                   {"hidden_error", 0.125},
                                                   {"attention_error", nullptr}}}));
  CHECK(read.at("families") ==
        nlohmann::json::array(
            {{{"family", "gla"}, {"form", "rows"}, {"bytes", 7}, {"flop", 9}, {"time_over_retnet", nullptr}}}));
}

TEST_CASE("figures are drawn whole, or the folder is left as it was and the fault named") {
  engine_test::temporary_folder const folder;
  std::vector<end_to_end_row> const quality{{.checkpoint = "a-b", .shape = {2, 128}, .mode = "addition", .kl = 0.1},
                                            {.checkpoint = "a-b", .shape = {4, 128}, .mode = "addition", .kl = 0.2}};
  require_figures(folder.path());
  draw_figures(cached(), quality, folder.path());
  std::set<std::string> names;
  for (auto const& entry : fs::directory_iterator(folder.path())) {
    names.insert(entry.path().filename().string());
    auto const bytes = hypic_engine::read_file(entry.path());
    std::string const text(reinterpret_cast<char const*>(bytes.data()), bytes.size());
    CHECK(text.find("</svg>") != std::string::npos);
    CHECK(text.find("<path") != std::string::npos);
  }
  CHECK(names == std::set<std::string>{"distance.svg", "drift.svg", "quality.svg", "seam.svg"});

  CHECK(engine_test::refusal([&] { require_figures(folder / "absent"); }).find("found no such folder") !=
        std::string::npos);
  std::string const path = std::getenv("PATH");
  ::setenv("PATH", folder.path().c_str(), 1);
  auto const without = engine_test::refusal([&] { require_figures(folder.path()); });
  ::setenv("PATH", path.c_str(), 1);
  CHECK(without.find("gnuplot: found none") != std::string::npos);
}

}  // namespace
