// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/error.hpp"

/// What the engine's tests share.
namespace engine_test {

/// A folder that is empty at first and gone at the end.
class temporary_folder {
 public:
  temporary_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "hypic-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + pattern);
    path_ = pattern;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;

  std::filesystem::path const& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// One line of printable ASCII.
inline bool is_one_line(std::string_view text) {
  bool good = !text.empty();
  for (char const c : text) good = good && c >= ' ' && c <= '~';
  return good;
}

/// The message of the engine_error that `action` must end in: one line.
template <class Action>
std::string refusal(Action const& action) {
  try {
    action();
  } catch (hypic_engine::engine_error const& error) {
    INFO(error.what());
    CHECK(is_one_line(error.what()));
    return error.what();
  }
  FAIL("no engine_error was thrown");
  return {};
}

}  // namespace engine_test
