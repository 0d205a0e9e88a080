// SPDX-License-Identifier: Apache-2.0
#include "tables/report.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace hypic_tables {
namespace {

std::string number_text(double value, std::chars_format format, int digits) {
  if (std::isnan(value)) return "-";
  std::array<char, 64> text{};
  auto const end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits).ptr;
  return {text.data(), end};
}

std::string padded(std::string const& cell, std::size_t width, bool left) {
  std::string const padding(width - cell.size(), ' ');
  return left ? cell + padding : padding + cell;
}

std::vector<std::size_t> widths_of(report_table const& table) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    widths.push_back(table.columns[c].size());
    for (auto const& row : table.rows) widths[c] = std::max(widths[c], row[c].size());
  }
  return widths;
}

std::string joined(report_table const& table, std::vector<std::string> const& row,
                   std::vector<std::size_t> const& widths, std::string const& between) {
  std::string line;
  for (std::size_t c = 0; c < row.size(); ++c) {
    if (c > 0) line += between;
    line += padded(row[c], widths[c], c < table.labels);
  }
  return line;
}

std::string json_string(std::string const& text) {
  std::string quoted = "\"";
  for (char const c : text) {
    auto const code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (code < 0x20) {
      constexpr char const* digits = "0123456789abcdef";
      quoted += std::string("\\u00") + digits[code >> 4] + digits[code & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string object_text(json_object const& object) {
  std::string text = "{";
  for (auto const& [name, value] : object) {
    if (text.size() > 1) text += ", ";
    text += json_string(name) + ": " + value.text();
  }
  return text + "}";
}

}  // namespace

json_value::json_value(double value) : text_("null") {
  if (!std::isfinite(value)) return;
  std::array<char, 64> text{};
  text_.assign(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
}

json_value::json_value(std::string const& value) : text_(json_string(value)) {}

std::string terminal_text(report_table const& table) {
  auto const widths = widths_of(table);
  auto const head = joined(table, table.columns, widths, "  ");
  auto text = table.title + "\n" + table.note + "\n\n" + head + "\n" + std::string(head.size(), '-') + "\n";
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    // A line between groups of rows with another first label.
    if (table.labels > 1 && i > 0 && table.rows[i][0] != table.rows[i - 1][0]) text += "\n";
    text += joined(table, table.rows[i], widths, "  ") + "\n";
  }
  return text;
}

std::string markdown_text(report_table const& table) {
  auto const widths = widths_of(table);
  auto text =
      "## " + table.title + "\n\n" + table.note + "\n\n| " + joined(table, table.columns, widths, " | ") + " |\n|";
  for (std::size_t c = 0; c < widths.size(); ++c)
    text += c < table.labels ? std::string(widths[c] + 2, '-') + "|" : std::string(widths[c] + 1, '-') + ":|";
  text += "\n";
  for (auto const& row : table.rows) text += "| " + joined(table, row, widths, " | ") + " |\n";
  return text;
}

std::string short_name(std::string const& checkpoint) { return checkpoint.substr(0, checkpoint.find('-')); }

std::string scientific(double value) { return number_text(value, std::chars_format::scientific, 1); }
std::string decimal(double value, int digits) { return number_text(value, std::chars_format::fixed, digits); }

std::string json_text(json_object const& header, std::span<json_array const> arrays) {
  auto text = "{\n\"header\": " + object_text(header);
  for (auto const& array : arrays) {
    text += ",\n" + json_string(array.name) + ": [";
    for (std::size_t i = 0; i < array.rows.size(); ++i) text += (i > 0 ? ",\n  " : "\n  ") + object_text(array.rows[i]);
    text += "\n]";
  }
  return text + "\n}\n";
}

}  // namespace hypic_tables
