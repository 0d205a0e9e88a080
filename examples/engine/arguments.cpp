// SPDX-License-Identifier: Apache-2.0
#include "engine/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "engine/error.hpp"

namespace hypic_engine {
namespace {

constexpr std::string_view help_option = "--help";

template <class... Parts>
[[noreturn]] void refuse(Parts const&... parts) {
  std::string text;
  (text.append(parts), ...);
  throw usage_error(text);
}

bool is_option(std::string_view word) noexcept { return word.starts_with("--"); }

option_rule const& rule_of(std::span<option_rule const> rules, std::string const& word) {
  if (!is_option(word)) refuse("found ", in_quotes(word), "; expected an option, which begins with --");
  auto const rule = std::find_if(rules.begin(), rules.end(), [&](auto const& r) { return r.name == word; });
  if (rule != rules.end()) return *rule;
  std::string known;
  for (auto const& r : rules) known.append(r.name).append(" ");
  refuse("found the option ", in_quotes(word), "; expected one of ", known, help_option);
}

/// The words from `next` on that are the option's values.
std::vector<std::string> take_values(option_rule const& rule, std::span<std::string const> words, std::size_t& next) {
  std::vector<std::string> values;
  auto const most = rule.what == option_rule::takes::values ? words.size() : std::size_t{1};
  while (values.size() < most && next < words.size() && !is_option(words[next])) values.push_back(words[next++]);
  if (values.empty()) refuse("option ", rule.name, ": found no value; expected ", rule.placeholder);
  for (auto const& value : values)
    if (value.empty()) refuse("option ", rule.name, ": found an empty value; expected ", rule.placeholder);
  return values;
}

std::string head_of(option_rule const& rule) {
  std::string head(rule.name);
  if (!rule.placeholder.empty()) head.append(" ").append(rule.placeholder);
  if (rule.what == option_rule::takes::values) head.append("...");
  return head;
}

}  // namespace

arguments::arguments(std::span<option_rule const> rules, std::span<std::string const> words)
    : help_(std::find(words.begin(), words.end(), help_option) != words.end()) {
  if (help_) return;
  for (std::size_t next = 0; next < words.size();) {
    auto const& rule = rule_of(rules, words[next++]);
    if (!rule.repeatable && has(rule.name)) refuse("option ", rule.name, ": found twice; expected once");
    given_.push_back({std::string(rule.name), {}});
    if (rule.what != option_rule::takes::nothing) given_.back().values = take_values(rule, words, next);
  }
  for (auto const& rule : rules)
    if (rule.required && !has(rule.name)) refuse("option ", rule.name, ": found nothing; expected ", head_of(rule));
}

given_option const* arguments::find(std::string_view name) const noexcept {
  auto const at = std::find_if(given_.begin(), given_.end(), [&](auto const& option) { return option.name == name; });
  return at == given_.end() ? nullptr : &*at;
}

std::string arguments::text(std::string_view name) const {
  auto const* option = find(name);
  return option == nullptr ? std::string() : option->values.front();
}

std::vector<std::string> arguments::values(std::string_view name) const {
  auto const* option = find(name);
  return option == nullptr ? std::vector<std::string>() : option->values;
}

std::int64_t arguments::number(std::string_view name, std::int64_t otherwise, std::int64_t least,
                               std::int64_t most) const {
  auto const* option = find(name);
  if (option == nullptr) return otherwise;
  auto const& word = option->values.front();
  std::int64_t value = 0;
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  bool const whole = error == std::errc() && end == word.data() + word.size();
  if (whole && value >= least && value <= most) return value;
  refuse("option ", name, ": found ", in_quotes(word), "; expected a whole number from ", std::to_string(least), " to ",
         std::to_string(most));
}

std::string help_lines(std::span<option_rule const> rules) {
  std::vector<std::pair<std::string, std::string_view>> lines;
  for (auto const& rule : rules) lines.emplace_back(head_of(rule), rule.help);
  lines.emplace_back(help_option, "print this");
  std::size_t widest = 0;
  for (auto const& [head, help] : lines) widest = std::max(widest, head.size());
  std::string text;
  for (auto const& [head, help] : lines)
    text.append("  ").append(head).append(widest + 2 - head.size(), ' ').append(help).append("\n");
  return text;
}

}  // namespace hypic_engine
