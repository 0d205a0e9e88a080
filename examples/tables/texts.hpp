// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tables/random.hpp"

namespace hypic_tables {

using token_list = std::vector<std::int32_t>;

/// A text, a token a byte.
struct text {
  std::string name;
  token_list tokens;
};

/// The texts `*.txt` of a folder, by name. Errors: engine_error (no folder, no text, one that cannot be read).
std::vector<text> load_texts(std::filesystem::path const& folder);

/// Pieces of the given lengths, cut at seeded places: in the text's order and without overlap where the text is long
/// enough for all of them, each at a place of its own otherwise. Errors: engine_error (a piece longer than the text).
std::vector<token_list> cut(text const& from, std::span<std::int64_t const> lengths, random_numbers& numbers);

}  // namespace hypic_tables
