// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "engine/commands.hpp"
#include "engine/compute.hpp"
#include "engine/error.hpp"
#include "engine/files.hpp"

namespace {

using hypic_engine::all_commands;
using hypic_engine::command;
using hypic_engine::engine_error;
using hypic_engine::usage_error;

constexpr int failure = 1;
constexpr int bad_usage = 2;

std::string overview() {
  std::string text = "usage: hypic-engine COMMAND OPTIONS\n\n";
  for (auto const& c : all_commands())
    text.append("  ").append(c.name).append(12 - c.name.size(), ' ').append(c.summary).append("\n");
  return text + "\nhypic-engine COMMAND --help lists a command's options.\n";
}

command const& find_command(std::string const& name) {
  auto const commands = all_commands();
  auto const at = std::find_if(commands.begin(), commands.end(), [&](auto const& c) { return c.name == name; });
  if (at != commands.end()) return *at;
  std::string known;
  for (auto const& c : commands) known.append(c.name).append(", ");
  throw usage_error("found the command " + hypic_engine::in_quotes(name) + "; expected one of " + known + "--help");
}

hypic_engine::command_result run(std::vector<std::string> const& words) {
  if (words.empty()) throw usage_error("found no command; expected one, as hypic-engine --help lists them");
  if (words.front() == "--help") return {overview(), {}};
  auto const& chosen = find_command(words.front());
  hypic_engine::arguments const given(chosen.rules, std::span(words).subspan(1));
  if (!given.help()) return chosen.run(given);
  auto const title = "usage: hypic-engine " + std::string(chosen.name) + " OPTIONS\n\n" + std::string(chosen.summary);
  return {title + "\n\n" + hypic_engine::help_lines(chosen.rules), {}};
}

/// Files last: they say that all went well.
void give_out(hypic_engine::command_result const& result) {
  std::cout << result.text << std::flush;
  if (!std::cout) hypic_engine::fail("standard output: cannot be written; expected room for the result");
  hypic_engine::write_files(result.files);
}

int report(std::string const& what, int code) {
  std::cerr << "hypic-engine: " << what << '\n';
  return code;
}

}  // namespace

int main(int count, char** words) {
  hypic_engine::use_good_settings(words);
  try {
    give_out(run({words + 1, words + std::max(count, 1)}));
    return 0;
  } catch (usage_error const& error) {
    return report(error.what(), bad_usage);
  } catch (engine_error const& error) {
    return report(error.what(), failure);
  } catch (std::bad_alloc const&) {
    return report("found too little memory; expected room for the model and the prompt", failure);
  } catch (std::exception const& error) {
    return report(error.what(), failure);
  }
}
