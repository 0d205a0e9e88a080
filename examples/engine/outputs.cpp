// SPDX-License-Identifier: Apache-2.0
#include "engine/outputs.hpp"

#include <unistd.h>

#include <string>
#include <system_error>

#include "engine/error.hpp"
#include "engine/files.hpp"

namespace hypic_engine {
namespace {

namespace fs = std::filesystem;

void require_place(fs::path const& path) {
  auto const name = in_quotes(path.string());
  std::error_code ignored;
  auto const status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail(name, ": found a folder; expected a file to write");
  if (fs::exists(status) && !fs::is_regular_file(status)) return;
  auto const folder = resolved(path).parent_path();  // a file is replaced by another that is written beside it
  if (!fs::is_directory(folder, ignored)) fail(name, ": found no folder to hold it; expected one");
  if (::access(folder.c_str(), W_OK) != 0)
    fail(name, ": found a folder that cannot be written; expected a writable one");
}

/// Whether writing a file to `one` would replace what `other` names.
bool same_file(fs::path const& one, fs::path const& other) {
  std::error_code error;
  auto const status = fs::status(one, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) return false;
  return resolved(one) == resolved(other) || (fs::equivalent(one, other, error) && !error);
}

}  // namespace

void require_places(arguments const& given, std::span<std::string_view const> options,
                    std::span<fs::path const> inputs) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    auto const path = given.text(options[i]);
    if (path.empty()) continue;
    require_place(path);
    for (auto const& other : options.first(i)) {
      if (given.has(other) && same_file(path, given.text(other)))
        throw usage_error("options " + std::string(other) + " and " + std::string(options[i]) +
                          ": found one file for both; expected two");
    }
    for (auto const& input : inputs) {
      if (same_file(path, input)) fail(in_quotes(path), ": found a file that is read; expected another to write");
    }
  }
}

}  // namespace hypic_engine
