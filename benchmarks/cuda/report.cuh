// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"

namespace hypic_benchmarks {

/// One timed shape.
struct row {
  std::string name, shape;
  std::string gates{};  ///< slow or mixed, or empty where there are none
  hypic::kernel_path path = hypic::kernel_path::automatic;
  double ms = 0.0;
  double error = 0.0;  ///< relative, Frobenius, of the outputs checked against fp64
  double bytes = 0.0;  ///< each input read once, each output written once
  double flop = 0.0;
};

/// Prints a row as it comes, on the error stream, and all of them as JSON.
class report {
 public:
  explicit report(double bytes_a_second) : bytes_a_second_(bytes_a_second) {}
  void add(row made);
  void print_json() const;

 private:
  double limit_ms(row const& of) const { return of.bytes / bytes_a_second_ * 1e3; }
  double bytes_a_second_;
  std::vector<row> rows_;
};

/// Ends the program with the status in words where a call was refused.
void expect_ok(hypic::status outcome);

/// |found - wanted| / |wanted|, and NaN where anything found is one.
double relative_error(std::vector<float> const& found, std::vector<double> const& wanted);

}  // namespace hypic_benchmarks
