// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace hypic_engine {

/// A command line that does not say what to do. Its text is one complete line: option, found, expected.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One option of a command, as its help shows it.
struct option_rule {
  enum class takes : std::uint8_t { nothing, one_value, values };

  std::string_view name;           ///< "--seam"
  takes what = takes::one_value;   ///< values: one or more, up to the next word that begins with "--"
  std::string_view placeholder{};  ///< "N"
  std::string_view help{};         ///< one line
  bool required = false;
  bool repeatable = false;  ///< may stand several times, in an order that means something
};

/// An option that was given, and its values.
struct given_option {
  std::string name;
  std::vector<std::string> values;
};

/// The words after a command, checked against its rules. `--help` is an option of every command; where it stands, nothing
/// is required and nothing is checked.
class arguments {
 public:
  /// Errors: usage_error (an unknown option, a word that belongs to none, a missing or empty value, an option that stands
  /// twice or is missing).
  arguments(std::span<option_rule const> rules, std::span<std::string const> words);

  bool help() const noexcept { return help_; }
  bool has(std::string_view name) const noexcept { return find(name) != nullptr; }
  /// The value of an option that takes one; empty where it was not given.
  std::string text(std::string_view name) const;
  /// The values of an option that takes some; none where it was not given.
  std::vector<std::string> values(std::string_view name) const;
  /// The number that an option gives, or `otherwise`. Errors: usage_error (no decimal number of least .. most).
  std::int64_t number(std::string_view name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const;
  /// All options, in their order.
  std::vector<given_option> const& all() const noexcept { return given_; }

 private:
  given_option const* find(std::string_view name) const noexcept;

  bool help_ = false;
  std::vector<given_option> given_;
};

/// The options as a help text lists them, a line each, `--help` last.
std::string help_lines(std::span<option_rule const> rules);

}  // namespace hypic_engine
