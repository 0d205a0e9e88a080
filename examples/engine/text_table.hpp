// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hypic_engine {

/// A table for terminals: columns as wide as they need to be. The first is flush left, the others flush right.
class text_table {
 public:
  explicit text_table(std::vector<std::string> header) : rows_{std::move(header)} {}

  /// A row has a cell a column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// A number with `digits` significant ones, "-" for NaN.
std::string cell(double value, int digits = 4);

}  // namespace hypic_engine
