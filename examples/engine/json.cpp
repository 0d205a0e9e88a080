// SPDX-License-Identifier: Apache-2.0
#include "engine/json.hpp"

#include <set>
#include <vector>

#include "engine/error.hpp"

namespace hypic_engine {
namespace {

using nlohmann::json;

/// Watches a parse: one set of keys per object that is open.
class strict_parse {
 public:
  explicit strict_parse(std::string const& source) : source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json const& parsed) {
    constexpr int deepest = 32;
    if (depth > deepest) fail(source_, ": found JSON nested deeper than ", deepest, " levels; expected less");
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key) add_key(parsed.get_ref<std::string const&>());
    return true;
  }

 private:
  void add_key(std::string const& key) {
    if (!open_.back().insert(key).second) fail(source_, ": found the key ", in_quotes(key), " twice; expected it once");
  }

  std::string const& source_;
  std::vector<std::set<std::string>> open_;
};

json parse(std::string_view text, std::string const& source) {
  strict_parse watch(source);
  auto const on_event = [&watch](int depth, json::parse_event_t event, json const& parsed) {
    return watch(depth, event, parsed);
  };
  try {
    return json::parse(text.begin(), text.end(), on_event);
  } catch (json::parse_error const& error) {
    if (error.byte > text.size())
      fail(source, ": found no valid JSON, its text ends after ", text.size(), " bytes; expected a whole object");
    fail(source, ": found no valid JSON at byte ", error.byte, " of ", text.size(), "; expected an object");
  } catch (json::exception const&) {
    fail(source, ": found a number that is out of range; expected valid JSON");
  }
}

}  // namespace

json parse_json_object(std::string_view text, std::string const& source) {
  // The parser would take a NUL for the end of the text and pass over what follows it.
  if (auto const at = text.find('\0'); at != std::string_view::npos) {
    fail(source, ": found a NUL at byte ", at, "; expected JSON text");
  }
  auto value = parse(text, source);
  if (!value.is_object()) fail(source, ": found ", shown(value), "; expected a JSON object");
  return value;
}

namespace {

std::string keys_of(json const& object) {
  std::string keys;
  for (auto const& [key, value] : object.items()) keys.append(keys.empty() ? "" : ", ").append(key);
  return in_quotes(keys);
}

}  // namespace

std::string shown(json const& value) {
  constexpr std::size_t longest = 60;
  std::string const kind = value.type_name();
  auto const text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (value.is_null()) return kind;
  if (text.size() > longest) return value.is_object() ? "an object of " + keys_of(value) : "a long " + kind;
  return kind + " " + text;
}

}  // namespace hypic_engine
