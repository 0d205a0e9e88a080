// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hypic_tables {

/// A table for people: the first `labels` columns are flush left, the others flush right.
struct report_table {
  std::string title;
  std::string note;  ///< what the columns mean
  std::size_t labels = 1;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  ///< a cell a column
};

std::string terminal_text(report_table const& table);
std::string markdown_text(report_table const& table);

/// Text in the manner of "1.2e-07"; "-" for NaN.
std::string scientific(double value);
/// Text with `digits` digits after the point.
std::string decimal(double value, int digits);

/// "gla" of "gla-hybrid-3.8m".
std::string short_name(std::string const& checkpoint);

/// A value, as JSON writes it. Numbers keep all their digits; those that are not finite become null.
class json_value {
 public:
  json_value(std::nullptr_t) : text_("null") {}                     // NOLINT: each is a value
  json_value(bool value) : text_(value ? "true" : "false") {}       // NOLINT
  json_value(std::int64_t value) : text_(std::to_string(value)) {}  // NOLINT
  json_value(double value);                                         // NOLINT
  json_value(std::string const& value);                             // NOLINT

  std::string const& text() const noexcept { return text_; }

 private:
  std::string text_;
};

using json_object = std::vector<std::pair<std::string, json_value>>;  ///< flat, in this order
struct json_array {
  std::string name;
  std::vector<json_object> rows;
};

/// {"header": {...}, "<name>": [{...}, ...], ...}, an object a line.
std::string json_text(json_object const& header, std::span<json_array const> arrays);

}  // namespace hypic_tables
