// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hypic_engine {

/// The JSON object that `text` holds. Stricter than the parser's own default: an object with two equal keys, nesting
/// deeper than 32 and NUL characters are refused.
/// Errors: engine_error, which begins with `source`.
nlohmann::json parse_json_object(std::string_view text, std::string const& source);

/// A value as a message shows it: its kind and, when short, its text.
std::string shown(nlohmann::json const& value);

}  // namespace hypic_engine
