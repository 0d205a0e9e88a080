// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/arguments.hpp"
#include "engine/files.hpp"

namespace hypic_engine {

/// What a command made: text for standard output, and files that are written after it, all of them or none.
struct command_result {
  std::string text;
  std::vector<file_content> files;
};

/// A command of hypic-engine.
struct command {
  std::string_view name;
  std::string_view summary;
  std::span<option_rule const> rules;
  /// Does it and writes nothing. Errors: usage_error, engine_error.
  command_result (*run)(arguments const& given);
};

/// compare, generate, explain.
std::span<command const> all_commands();

}  // namespace hypic_engine
