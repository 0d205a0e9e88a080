// SPDX-License-Identifier: Apache-2.0
// The kernels of a hit, timed. Each timed shape is checked against fp64 on the inputs that are timed, its outputs
// poisoned before. Prints one JSON object; run.py adds the peers' times and writes the results' file.
#include <algorithm>
#include <string>

#include "attention_case.cuh"
#include "chain_case.cuh"
#include "rebase_case.cuh"
#include "walk_case.cuh"

using namespace hypic;
using namespace hypic_benchmarks;

int main(int count, char** words) {
  // Arguments: of which rows the names contain one; none: all.
  auto const wanted = [&](std::string const& name) {
    auto const names = [&](char const* word) { return name.find(word) != std::string::npos; };
    return count == 1 || std::any_of(words + 1, words + count, names);
  };
  report rows(copy_rate());
  auto const compose = [&](char const* name, int layers, int runs, int dim, kernel_path path = kernel_path::automatic) {
    if (wanted(name)) rows.add(chain_case(layers, 32, runs, dim).time(name, path));
  };
  auto const walk = [&](char const* name, int requests, int spans) {
    for (bool const slow : {true, false}) {
      if (wanted(name)) rows.add(walk_case(requests, spans, slow).time(name));
    }
  };
  compose("compose_fp32", 30, 16, 128);
  compose("compose_fp32_generic", 30, 16, 128, kernel_path::generic);
  for (int const runs : {1, 2, 4, 8, 16, 32, 64}) compose("compose_by_spans", 8, runs, 128);
  for (int const layers : {1, 2, 4, 8, 16, 32}) compose("compose_by_layers", layers, 16, 128);
  compose("compose_d64", 30, 16, 64);
  walk("seam_walk_gated_deltanet", 1, 16);
  for (int const spans : {1, 4, 16, 64}) walk("seam_walk_by_spans", 1, spans);
  for (int const requests : {1, 2, 4, 8}) walk("seam_walk_by_requests", requests, 16);
  auto const attend = [&](char const* name, int keys, int question) {
    if (wanted(name)) rows.add(attention_case(keys, question).time(name));
  };
  attend("seam_attention", 32768, 64);
  for (int const keys : {4096, 16384, 65536, 131072}) attend("seam_attention_by_keys", keys, 64);
  auto const rebase = [&](char const* name, int tokens) {
    if (wanted(name)) rows.add(rebase_case(tokens).time(name));
  };
  rebase("rebase_keys", 32768);
  for (int const tokens : {4096, 16384, 65536, 131072}) rebase("rebase_keys_by_rows", tokens);
  rows.print_json();
}
