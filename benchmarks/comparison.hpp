// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

namespace hypic_benchmarks {

/// The best of a benchmark's repetitions: on a shared machine others only ever make it slower.
struct measured {
  double seconds = 0.0;  ///< of one iteration
  double rate = 0.0;     ///< its counter `rate`, a second; 0: it has none
  std::string label{};
};

/// Keeps the best by name, and shows that it goes on.
class best_reporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(Context const& context) override;
  void ReportRuns(std::vector<Run> const& runs) override;
  std::map<std::string, measured> const& best() const noexcept { return best_; }

 private:
  std::map<std::string, measured> best_;
};

void print_times(best_reporter const& ran);

/// One line of the table of ratios: what a benchmark reaches of another that ran in the same process.
struct ratio_line {
  std::string name;       ///< of ours
  std::string reference;  ///< of what it is held against
  bool of_times = false;  ///< whether the ratio is of seconds; otherwise it is of rates
  double bound = 0.0;     ///< of seconds the most, of rates the least
};

/// One table of growth: the benchmarks `name`/size, their time over that of the first size, and that by size.
struct growth_table {
  std::string name;
  std::string size;  ///< what the size counts
  std::vector<std::int64_t> sizes;
};

/// Print a table; lines whose benchmarks did not run are left out, those that miss their bound say so.
void print_ratios(std::vector<ratio_line> const& lines, best_reporter const& ran);
void print_growth(growth_table const& table, best_reporter const& ran);

}  // namespace hypic_benchmarks
