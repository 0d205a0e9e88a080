// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace hypic_benchmarks {
namespace {

measured const* find(best_reporter const& ran, std::string const& name) {
  auto const found = ran.best().find(name);
  return found == ran.best().end() ? nullptr : &found->second;
}

}  // namespace

bool best_reporter::ReportContext(Context const& context) {
  PrintBasicContext(&std::cerr, context);
  return true;
}

void best_reporter::ReportRuns(std::vector<Run> const& runs) {
  for (auto const& run : runs) {
    if (run.error_occurred) std::fprintf(stderr, "%s: %s\n", run.benchmark_name().c_str(), run.error_message.c_str());
    if (run.error_occurred || run.run_type != Run::RT_Iteration) continue;
    auto const seconds = run.real_accumulated_time / static_cast<double>(run.iterations);
    auto const rate = run.counters.find("rate");
    auto const args = run.run_name.args.empty() ? "" : "/" + run.run_name.args;
    auto const [at, is_new] = best_.try_emplace(run.run_name.function_name + args, measured{seconds});
    auto& one = at->second;
    one.seconds = std::min(one.seconds, seconds);
    if (rate != run.counters.end()) one.rate = std::max(one.rate, static_cast<double>(rate->second));
    one.label = run.report_label;
    std::fputc('.', stderr);
  }
}

void print_times(best_reporter const& ran) {
  std::printf("\n%-36s %12s %10s\n", "best of its repetitions", "ms", "G/s");
  for (auto const& [name, one] : ran.best()) {
    std::printf("%-36s %12.3f", name.c_str(), 1e3 * one.seconds);
    if (one.rate > 0.0) std::printf(" %10.1f", 1e-9 * one.rate);
    std::printf("  %s\n", one.label.c_str());
  }
}

void print_ratios(std::vector<ratio_line> const& lines, best_reporter const& ran) {
  std::printf("\n%-28s %-24s %8s %8s\n", "hypic", "beside", "ratio", "bound");
  for (auto const& line : lines) {
    auto const* ours = find(ran, line.name);
    auto const* reference = find(ran, line.reference);
    if (ours == nullptr || reference == nullptr) continue;
    auto const ratio = line.of_times ? ours->seconds / reference->seconds : ours->rate / reference->rate;
    auto const kept = line.of_times ? ratio <= line.bound : ratio >= line.bound;
    std::printf("%-28s %-24s %7.0f%% %s %4.0f%%%s%s%s\n", line.name.c_str(), line.reference.c_str(), 100.0 * ratio,
                line.of_times ? "<=" : ">=", 100.0 * line.bound, kept ? "" : "  missed",
                reference->label.empty() ? "" : "  ", reference->label.c_str());
  }
}

void print_growth(growth_table const& table, best_reporter const& ran) {
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
