// SPDX-License-Identifier: Apache-2.0
// hypic-tables: the project's main job. Exactness, composition and end-to-end quality on real checkpoints and text.
#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/arguments.hpp"
#include "engine/compute.hpp"
#include "engine/error.hpp"
#include "engine/files.hpp"
#include "engine/outputs.hpp"
#include "engine/progress_bar.hpp"
#include "hypic/core/version.hpp"
#include "tables/figures.hpp"
#include "tables/tables.hpp"

namespace {

using namespace hypic_tables;
using hypic_engine::option_rule;

constexpr std::array<option_rule, 7> rules{{
    {.name = "--markdown", .placeholder = "OUT", .help = "write the tables as Markdown"},
    {.name = "--json", .placeholder = "OUT", .help = "write all rows as JSON"},
    {.name = "--figures", .placeholder = "DIR", .help = "draw the evidence as SVG into this folder (needs gnuplot)"},
    {.name = "--threads", .placeholder = "N", .help = "work on N threads (default: all processors)"},
    {.name = "--data", .placeholder = "DIR", .help = "checkpoints and texts (default: the project's own)"},
    {.name = "--seed", .placeholder = "N", .help = "choose other prompts (default: 1)"},
    {.name = "--commit", .placeholder = "HASH", .help = "name the commit in what is written"},
}};

struct run_header {
  std::string version;
  std::string command;
  std::string commit;
  std::uint64_t seed = 0;
};

run_header header_of(hypic_engine::arguments const& given, table_options const& options) {
  auto const [major, minor, patch] = hypic::header_version;
  return {std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch),
          "hypic-tables --seed " + std::to_string(options.seed) + " --threads " + std::to_string(options.threads),
          given.text("--commit"), options.seed};
}

/// The files that the tables are made from.
std::vector<std::filesystem::path> files_in(std::filesystem::path const& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator(folder, ignored)) {
    auto const kind = entry.path().extension();
    if (kind == ".safetensors" || kind == ".txt") files.push_back(entry.path());
  }
  return files;
}

void say(std::string const& text) {
  std::cout << text << std::flush;
  if (!std::cout) hypic_engine::fail("standard output: cannot be written; expected room for the tables");
}

/// Adds a text to the files to write, where one was asked for.
void add_text(std::vector<hypic_engine::file_content>& files, std::string const& path, std::string const& text) {
  if (path.empty()) return;
  auto const bytes = std::as_bytes(std::span(text));
  files.push_back({path, {bytes.begin(), bytes.end()}});
}

std::string markdown_head(run_header const& header) {
  auto text = "# What the CPU back end computes\n\nMade by `" + header.command + "`, version " + header.version;
  if (!header.commit.empty()) text += ", commit " + header.commit;
  return text + ".\n";
}

json_object json_head(run_header const& header) {
  json_object head{
      {"version", header.version}, {"command", header.command}, {"seed", static_cast<std::int64_t>(header.seed)}};
  if (!header.commit.empty()) head.emplace_back("commit", header.commit);
  return head;
}

int run(hypic_engine::arguments const& given) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  auto const processors = std::max(1u, std::thread::hardware_concurrency());
  table_options options;
  options.threads = static_cast<int>(given.number("--threads", processors, 1, 1024));
  options.seed = static_cast<std::uint64_t>(given.number("--seed", 1, 0, most));
  auto const folder = given.has("--data") ? given.text("--data") : HYPIC_ENGINE_DATA;
  constexpr std::array<std::string_view, 2> results{"--markdown", "--json"};
  hypic_engine::require_places(given, results, files_in(folder));
  auto const figures = given.text("--figures");
  if (!figures.empty()) require_figures(figures);
  auto const header = header_of(given, options);
  auto const start = std::chrono::steady_clock::now();
  auto const data = load_data(folder);

  auto markdown = markdown_head(header);
  auto const show = [&](report_table const& table) {
    say(terminal_text(table) + "\n");
    markdown += "\n";
    markdown += markdown_text(table);
  };
  hypic_engine::progress_bar bar;
  auto const exactness = make_exactness(data, options, bar.show("exactness"));
  show(shown_exactness(exactness));
  auto const composition = make_composition(data, options, bar.show("composition"));
  show(shown_composition(composition));
  auto const end_to_end = make_end_to_end(data, options, bar.show("end to end"));
  for (auto const& table : shown_end_to_end(end_to_end)) show(table);
  auto const evidence = make_evidence(data, options, document_use::cached, bar.show("evidence"));
  for (auto const& table : shown_evidence(evidence)) show(table);
  auto const families = run_families(options.seed);
  show(shown_families(families));

  if (!figures.empty()) draw_figures(evidence, end_to_end, figures);
  std::array const arrays{listed(exactness),
                          listed(composition),
                          listed(end_to_end),
                          listed(evidence.drift),
                          listed(evidence.seam, evidence.distances),
                          listed(families)};
  std::vector<hypic_engine::file_content> files;
  add_text(files, given.text("--markdown"), markdown);
  add_text(files, given.text("--json"), json_text(json_head(header), arrays));
  hypic_engine::write_files(files);
  auto const met = all_met(exactness);
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
  say(std::string(met ? "All exactness checks meet their bounds" : "EXACTNESS CHECKS MISS THEIR BOUNDS") + "; " +
      decimal(took.count(), 0) + " s on " + std::to_string(options.threads) + " threads.\n");
  return met ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  hypic_engine::use_good_settings(argv);
  try {
    hypic_engine::arguments const given(rules, std::vector<std::string>(argv + 1, argv + argc));
    if (!given.help()) return run(given);
    say("usage: hypic-tables [OPTIONS]\n\nRuns the project's tables on its checkpoints and texts.\n\n" +
        hypic_engine::help_lines(rules));
    return 0;
  } catch (hypic_engine::usage_error const& error) {
    std::cerr << "hypic-tables: " << error.what() << "\n";
    return 2;
  } catch (std::exception const& error) {
    std::cerr << "hypic-tables: " << error.what() << "\n";
    return 1;
  }
}
