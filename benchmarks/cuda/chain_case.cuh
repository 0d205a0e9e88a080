// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "device_timing.cuh"
#include "hypic/cuda/fold_chains.hpp"
#include "oracle/recurrence_oracle.hpp"
#include "report.cuh"

namespace hypic_benchmarks {

/// Chains of dense operators: `layers` layers of `heads` heads, `runs` runs each, all random.
class chain_case {
 public:
  chain_case(int layers, int heads, int runs, int dim)
      : layers_(layers),
        heads_(heads),
        runs_(runs),
        dim_(static_cast<std::size_t>(dim)),
        plan_(plan_chains(hypic::operator_form::dense, {heads, heads, dim, dim}, layers, false)),
        operators_(matrices() * matrix()),
        end_states_(matrices() * matrix()),
        states_(state_matrices() * matrix()) {
    // The norm of such an operator is near 1.
    fill_normal(operators_.data(), matrices() * matrix(), 1, 0.5f / std::sqrt(static_cast<float>(dim)));
    fill_normal(end_states_.data(), matrices() * matrix(), 2, 1.0f);
    std::vector<hypic::chain> chains;
    std::vector<hypic::chain_run> table;
    for (int layer = 0; layer < layers; ++layer) {
      chains.push_back({layer * runs, runs, nullptr, states_.data() + at(layer, 0, 0, 1), nullptr});
      for (int run = 0; run < runs; ++run) {
        auto const first = at(layer, run, 0, runs);
        table.push_back({operators_.data() + first, nullptr, end_states_.data() + first});
      }
    }
    chains_ = std::make_unique<device_memory<hypic::chain>>(chains);
    table_ = std::make_unique<device_memory<hypic::chain_run>>(table);
  }

  row time(std::string name, hypic::kernel_path path) {
    hypic::chain_tables const tables{chains_->data(), table_->data(), nullptr, nullptr};
    states_.poison();
    double const ms = median_ms([&](cudaStream_t stream) {
      expect_ok(fold_chains(plan_, tables, {.stream = hypic::stream_ref{stream}, .path = path}));
    });
    auto const all = static_cast<double>(matrices());
    auto const elements = static_cast<double>(matrix());
    return {.name = std::move(name),
            .shape = std::to_string(layers_) + " layers x " + std::to_string(heads_) + " heads x " +
                     std::to_string(runs_) + " runs, D " + std::to_string(dim_),
            .path = path,
            .ms = ms,
            .error = error(),
            .bytes = (2.0 * all + static_cast<double>(state_matrices())) * elements * 4.0,
            .flop = all * 2.0 * elements * static_cast<double>(dim_)};
  }

 private:
  std::size_t matrix() const { return dim_ * dim_; }
  std::size_t state_matrices() const { return static_cast<std::size_t>(layers_) * static_cast<std::size_t>(heads_); }
  std::size_t matrices() const { return state_matrices() * static_cast<std::size_t>(runs_); }
  std::size_t at(int layer, int run, int head, int runs) const {
    return static_cast<std::size_t>((layer * runs + run) * heads_ + head) * matrix();
  }

  /// The largest of some states.
  double error() const {
    double worst = 0.0;
    for (int const layer : {0, layers_ / 2, layers_ - 1}) {
      for (int const head : {0, heads_ - 1}) worst = std::max(worst, error_of(layer, head));
    }
    return worst;
  }
  double error_of(int layer, int head) const {
    std::vector<double> state(matrix());
    for (int run = 0; run < runs_; ++run) {
      auto const op = operators_.read(at(layer, run, head, runs_), matrix());
      auto const added = end_states_.read(at(layer, run, head, runs_), matrix());
      state = oracle::product({op.begin(), op.end()}, state, dim_, dim_, dim_);
      for (std::size_t i = 0; i < matrix(); ++i) state[i] += static_cast<double>(added[i]);
    }
    return relative_error(states_.read(at(layer, 0, head, 1), matrix()), state);
  }

  int layers_, heads_, runs_;
  std::size_t dim_;
  hypic::chain_plan plan_;
  device_memory<float> operators_, end_states_, states_;
  std::unique_ptr<device_memory<hypic::chain>> chains_;
  std::unique_ptr<device_memory<hypic::chain_run>> table_;
};

}  // namespace hypic_benchmarks
