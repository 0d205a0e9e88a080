// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/arguments.hpp"

namespace hypic_engine {

/// A command of hypic-engine.
struct command {
  std::string_view name;
  std::string_view summary;
  std::span<option_rule const> rules;
  /// Does it and gives the text for standard output; files are written last, whole or not at all.
  /// Errors: usage_error, engine_error.
  std::string (*run)(arguments const& given);
};

/// compare, generate, explain.
std::span<command const> all_commands();

}  // namespace hypic_engine
