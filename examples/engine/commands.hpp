// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/arguments.hpp"

namespace hypic_engine {

/// What a command made: text for standard output, and files that are written after it, each whole or not at all.
struct command_result {
  struct file {
    std::string path;
    std::vector<std::byte> bytes;
  };
  std::string text;
  std::vector<file> files;
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
