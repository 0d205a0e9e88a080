// SPDX-License-Identifier: Apache-2.0
// The kernels of a hit, timed. Each timed shape is first checked against fp64 on the inputs that are timed, its outputs
// poisoned before. Prints one JSON object; benchmarks/cuda/run adds the peers' times and writes the results' file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "device_timing.cuh"
#include "hypic/cuda/fold_chains.hpp"

using namespace hypic;
using namespace hypic_benchmarks;

namespace {

struct row {
  std::string name, shape, path;
  double ms, error, bytes, flop;
};

std::vector<row> rows;
double bytes_a_second = 0.0;

void add(row const& made) {
  rows.push_back(made);
  double const limit = made.bytes / bytes_a_second * 1e3;
  std::fprintf(stderr, "%-28s %-44s %-8s %8.3f ms %5.1f %% of copy, error %.1e\n", made.name.c_str(),
               made.shape.c_str(), made.path.c_str(), made.ms, 100.0 * limit / made.ms, made.error);
}

void expect_ok(status outcome) {
  if (outcome == status::ok) return;
  std::fprintf(stderr, "%s\n", message(outcome).c_str());
  std::exit(1);
}

char const* name(kernel_path path) { return path == kernel_path::generic ? "generic" : "best"; }

/// Chains of dense operators: `layers` layers of `heads` heads, `runs` runs each, all random.
class chain_case {
 public:
  chain_case(int layers, int heads, int runs, int dim)
      : layers_(layers),
        heads_(heads),
        runs_(runs),
        dim_(static_cast<std::size_t>(dim)),
        operators_(matrices() * matrix()),
        end_states_(matrices() * matrix()),
        states_(state_matrices() * matrix()) {
    // The norm of such an operator is near 1.
    fill_normal(operators_.data(), matrices() * matrix(), 1, 0.5f / std::sqrt(static_cast<float>(dim)));
    fill_normal(end_states_.data(), matrices() * matrix(), 2, 1.0f);
    std::vector<chain> chains;
    std::vector<chain_run> table;
    for (int layer = 0; layer < layers; ++layer) {
      chains.push_back({layer * runs, runs, nullptr, states_.data() + at(layer, 0, 0, 1), nullptr});
      for (int run = 0; run < runs; ++run)
        table.push_back(
            {operators_.data() + at(layer, run, 0, runs), nullptr, end_states_.data() + at(layer, run, 0, runs)});
    }
    chains_ = std::make_unique<device_memory<chain>>(chains);
    table_ = std::make_unique<device_memory<chain_run>>(table);
    plan_ = plan_chains(operator_form::dense, {heads, heads, dim, dim}, layers, false);
  }

  void time(char const* label, kernel_path path) {
    auto const queue = [&](cudaStream_t stream) {
      expect_ok(fold_chains(plan_, {chains_->data(), table_->data(), nullptr, nullptr},
                            {.stream = stream_ref{stream}, .path = path}));
    };
    states_.poison();
    double const ms = median_ms(queue);
    double const product = 2.0 * std::pow(static_cast<double>(dim_), 3.0);
    auto const all = static_cast<double>(matrices());
    double const bytes = (2.0 * all + static_cast<double>(state_matrices())) * static_cast<double>(matrix()) * 4.0;
    char shape[128];
    std::snprintf(shape, sizeof shape, "%d layers x %d heads x %d runs, D %zu", layers_, heads_, runs_, dim_);
    add({label, shape, name(path), ms, error(), bytes, all * product});
  }

 private:
  std::size_t matrix() const { return dim_ * dim_; }
  std::size_t state_matrices() const { return static_cast<std::size_t>(layers_) * static_cast<std::size_t>(heads_); }
  std::size_t matrices() const { return state_matrices() * static_cast<std::size_t>(runs_); }
  std::size_t at(int layer, int run, int head, int runs) const {
    return static_cast<std::size_t>((layer * runs + run) * heads_ + head) * matrix();
  }

  /// The largest relative error of some states against fp64.
  double error() const {
    double worst = 0.0;
    for (int const layer : {0, layers_ / 2, layers_ - 1}) {
      for (int const head : {0, heads_ - 1}) worst = std::fmax(worst, error_of(layer, head));
    }
    return worst;
  }
  double error_of(int layer, int head) const {
    std::vector<double> state(matrix());
    for (int run = 0; run < runs_; ++run) {
      auto const t = operators_.read(at(layer, run, head, runs_), matrix());
      auto const added = end_states_.read(at(layer, run, head, runs_), matrix());
      std::vector<double> next(added.begin(), added.end());
      for (std::size_t i = 0; i < dim_; ++i)
        for (std::size_t j = 0; j < dim_; ++j)
          for (std::size_t c = 0; c < dim_; ++c)
            next[i * dim_ + c] += static_cast<double>(t[i * dim_ + j]) * state[j * dim_ + c];
      state = std::move(next);
    }
    auto const found = states_.read(at(layer, 0, head, 1), matrix());
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < matrix(); ++i) {
      difference += std::pow(static_cast<double>(found[i]) - state[i], 2.0);
      norm += state[i] * state[i];
    }
    return std::sqrt(difference / norm);
  }

  int layers_, heads_, runs_;
  std::size_t dim_;
  device_memory<float> operators_, end_states_, states_;
  std::unique_ptr<device_memory<chain>> chains_;
  std::unique_ptr<device_memory<chain_run>> table_;
  chain_plan plan_;
};

void print_json() {
  std::printf("{\"gpu\": \"%s\", \"copy_tb_s\": %.3f, \"rows\": [", device_name().c_str(), bytes_a_second / 1e12);
  char const* comma = "";
  for (auto const& r : rows) {
    std::printf(
        "%s\n  {\"name\": \"%s\", \"shape\": \"%s\", \"path\": \"%s\", \"ms\": %.5f, \"limit_ms\": %.5f, "
        "\"error\": %.3e, \"bytes\": %.0f, \"flop\": %.0f}",
        comma, r.name.c_str(), r.shape.c_str(), r.path.c_str(), r.ms, r.bytes / bytes_a_second * 1e3, r.error, r.bytes,
        r.flop);
    comma = ",";
  }
  std::printf("\n]}\n");
}

}  // namespace

int main(int count, char** words) {
  // Arguments: of which rows the names contain one; none: all.
  auto const wanted = [&](std::string const& row) {
    auto const names = [&](char const* word) { return row.find(word) != std::string::npos; };
    return count == 1 || std::any_of(words + 1, words + count, names);
  };
  auto const time = [&](char const* row, int layers, int runs, int dim, kernel_path path = kernel_path::automatic) {
    if (wanted(row)) chain_case(layers, 32, runs, dim).time(row, path);
  };
  bytes_a_second = copy_rate();
  time("compose_fp32", 30, 16, 128);
  time("compose_fp32_generic", 30, 16, 128, kernel_path::generic);
  for (int const runs : {1, 2, 4, 8, 16, 32, 64}) time("compose_by_spans", 8, runs, 128);
  for (int const layers : {1, 2, 4, 8, 16, 32}) time("compose_by_layers", layers, 16, 128);
  time("compose_d64", 30, 16, 64);
  print_json();
}
