// SPDX-License-Identifier: Apache-2.0
#include "tables/texts.hpp"

#include <algorithm>
#include <numeric>
#include <system_error>

#include "engine/error.hpp"
#include "engine/files.hpp"

namespace hypic_tables {
namespace {

namespace fs = std::filesystem;

token_list piece(text const& from, std::int64_t first, std::int64_t length) {
  return {from.tokens.begin() + first, from.tokens.begin() + first + length};
}

}  // namespace

std::vector<text> load_texts(fs::path const& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (auto const& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  if (error)
    hypic_engine::fail(hypic_engine::in_quotes(folder.string()), ": found ", error.message(),
                       "; expected the folder of checkpoints and texts");
  if (paths.empty())
    hypic_engine::fail(hypic_engine::in_quotes(folder.string()), ": found no text; expected files named *.txt");
  std::sort(paths.begin(), paths.end());
  std::vector<text> texts;
  for (auto const& path : paths) {
    text next{path.stem().string(), {}};
    for (auto const byte : hypic_engine::read_file(path)) next.tokens.push_back(std::to_integer<std::int32_t>(byte));
    texts.push_back(std::move(next));
  }
  return texts;
}

std::vector<token_list> cut(text const& from, std::span<std::int64_t const> lengths, random_numbers& numbers) {
  auto const all = static_cast<std::int64_t>(from.tokens.size());
  auto const gaps = all - std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::vector<token_list> pieces;
  if (gaps < 0) {
    for (auto const length : lengths) {
      if (length > all)
        hypic_engine::fail("the text ", hypic_engine::in_quotes(from.name), ": found ", all,
                           " bytes; expected at least ", length);
      pieces.push_back(piece(from, numbers.below(all - length + 1), length));
    }
    return pieces;
  }
  std::vector<std::int64_t> before;  // bytes left out before each piece
  for (std::size_t i = 0; i < lengths.size(); ++i) before.push_back(numbers.below(gaps + 1));
  std::sort(before.begin(), before.end());
  std::int64_t used = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    pieces.push_back(piece(from, before[i] + used, lengths[i]));
    used += lengths[i];
  }
  return pieces;
}

}  // namespace hypic_tables
