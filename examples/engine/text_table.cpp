// SPDX-License-Identifier: Apache-2.0
#include "engine/text_table.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace hypic_engine {

std::string text_table::text() const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (auto const& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (auto const& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::string const padding(widths[c] - row[c].size(), ' ');
      text += c == 0 ? row[c] + padding : "  " + padding + row[c];
    }
    text += "\n";
  }
  return text;
}

std::string cell(double value, int digits) {
  if (std::isnan(value)) return "-";
  std::ostringstream out;
  out.precision(digits);
  out << value;
  return out.str();
}

}  // namespace hypic_engine
