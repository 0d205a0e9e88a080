// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <cstdio>

namespace hypic_benchmarks {
namespace {

measured const* find(median_reporter const& ran, std::string const& name) {
  auto const found = ran.medians().find(name);
  return found == ran.medians().end() ? nullptr : &found->second;
}

}  // namespace

void median_reporter::ReportRuns(std::vector<Run> const& runs) {
  ConsoleReporter::ReportRuns(runs);
  for (auto const& run : runs) {
    if (run.error_occurred || run.aggregate_name != "median") continue;
    auto const rate = run.counters.find("rate");
    medians_[run.run_name.function_name + (run.run_name.args.empty() ? "" : "/" + run.run_name.args)] = {
        run.real_accumulated_time, rate == run.counters.end() ? 0.0 : rate->second.value, run.report_label};
  }
}

bool print_ratios(std::vector<ratio_line> const& lines, median_reporter const& ran) {
  bool all_kept = true;
  std::printf("\n%-28s %-24s %8s %8s\n", "hypic", "beside", "ratio", "bound");
  for (auto const& line : lines) {
    auto const* ours = find(ran, line.name);
    auto const* reference = find(ran, line.reference);
    if (ours == nullptr || reference == nullptr) continue;
    auto const ratio = line.of_times ? ours->seconds / reference->seconds : ours->rate / reference->rate;
    auto const kept = line.of_times ? ratio <= line.bound : ratio >= line.bound;
    all_kept = all_kept && kept;
    std::printf("%-28s %-24s %7.0f%% %s %4.0f%%%s%s%s\n", line.name.c_str(), line.reference.c_str(), 100.0 * ratio,
                line.of_times ? "<=" : ">=", 100.0 * line.bound, kept ? "" : "  missed",
                reference->label.empty() ? "" : "  ", reference->label.c_str());
  }
  return all_kept;
}

void print_growth(growth_table const& table, median_reporter const& ran) {
  auto const* first = find(ran, table.name + "/" + std::to_string(table.sizes.front()));
  if (first == nullptr) return;
  std::printf("\n%-28s %10s %10s\n", table.name.c_str(), "time", "by size");
  for (auto const size : table.sizes) {
    auto const* one = find(ran, table.name + "/" + std::to_string(size));
    if (one == nullptr) continue;
    auto const growth = one->seconds / first->seconds;
    std::printf("%9lld %-18s %9.2fx %9.2fx\n", static_cast<long long>(size), table.size.c_str(), growth,
                growth * static_cast<double>(table.sizes.front()) / static_cast<double>(size));
  }
}

}  // namespace hypic_benchmarks
