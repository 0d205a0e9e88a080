// SPDX-License-Identifier: Apache-2.0
#include "report.cuh"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "device_timing.cuh"

namespace hypic_benchmarks {
namespace {

char const* name(hypic::kernel_path path) {
  switch (path) {
    case hypic::kernel_path::automatic: return "automatic";
    case hypic::kernel_path::generic: return "generic";
    case hypic::kernel_path::hopper: break;
  }
  return "hopper";
}

}  // namespace

void report::add(row made) {
  std::fprintf(stderr, "%-28s %-46s %-6s %-9s %8.4f ms, limit %8.4f, error %.1e\n", made.name.c_str(),
               made.shape.c_str(), made.gates.c_str(), name(made.path), made.ms, limit_ms(made), made.error);
  rows_.push_back(std::move(made));
}

void report::print_json() const {
  std::printf("{\"gpu\": \"%s\", \"copy_tb_s\": %.3f, \"rows\": [", device_name().c_str(), bytes_a_second_ / 1e12);
  char const* comma = "";
  for (auto const& r : rows_) {
    std::printf(
        "%s\n  {\"name\": \"%s\", \"shape\": \"%s\", \"gates\": \"%s\", \"path\": \"%s\", \"ms\": %.5f, "
        "\"limit_ms\": %.5f, \"error\": %.3e, \"bytes\": %.0f, \"flop\": %.0f}",
        comma, r.name.c_str(), r.shape.c_str(), r.gates.c_str(), name(r.path), r.ms, limit_ms(r), r.error, r.bytes,
        r.flop);
    comma = ",";
  }
  std::printf("\n]}\n");
}

void expect_ok(hypic::status outcome) {
  if (outcome == hypic::status::ok) return;
  std::fprintf(stderr, "%s\n", message(outcome).c_str());
  std::exit(1);
}

double relative_error(std::vector<float> const& found, std::vector<double> const& wanted) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - wanted[i], 2.0);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace hypic_benchmarks
