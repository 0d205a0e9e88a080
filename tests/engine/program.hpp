// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace engine_test {

/// What a run of a program left.
struct program_result {
  int code = -1;  ///< its exit code; -1: it did not exit by itself
  std::string out;
  std::string err;
};

/// Where a program's standard output goes, if not to `out`.
enum class output { captured, full_device };

/// Runs a program with nothing on its standard input and waits for its end.
program_result run_program(std::string const& path, std::vector<std::string> const& words,
                           output to = output::captured);

/// What a program writes to a terminal that stands for its standard error.
std::string terminal_output(std::string const& path, std::vector<std::string> const& words);

}  // namespace engine_test
