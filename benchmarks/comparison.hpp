// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

namespace hypic_benchmarks {

/// What a benchmark's median says.
struct measured {
  double seconds = 0.0;  ///< of one iteration
  double rate = 0.0;     ///< its counter `rate`, a second; 0: it has none
  std::string label{};
};

/// Prints as the console does, and keeps the medians by name.
class median_reporter final : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(std::vector<Run> const& runs) override;
  std::map<std::string, measured> const& medians() const noexcept { return medians_; }

 private:
  std::map<std::string, measured> medians_;
};

/// One line of the table of ratios: what a benchmark reaches of another that ran in the same process.
struct ratio_line {
  std::string name;       ///< of ours
  std::string reference;  ///< of what it is held against
  bool of_times =
      false;  ///< the ratio is of seconds, which is to stay below the bound; otherwise of rates, at least it
  double bound = 0.0;
};

/// One table of growth: the benchmarks `name`/size, their time over that of the first size, and that by size.
struct growth_table {
  std::string name;
  std::string size;  ///< what the size counts
  std::vector<std::int64_t> sizes;
};

/// Print a table; lines whose benchmarks did not run are left out. Whether each line that ran keeps its bound.
bool print_ratios(std::vector<ratio_line> const& lines, median_reporter const& ran);
void print_growth(growth_table const& table, median_reporter const& ran);

}  // namespace hypic_benchmarks
