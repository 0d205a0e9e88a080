// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device_timing.cuh"
#include "hypic/cuda/seam_repair.hpp"
#include "oracle/recurrence_oracle.hpp"
#include "report.cuh"

namespace hypic_benchmarks {

/// One linear layer of Gated DeltaNet, bf16 rows: each request has `spans` cached spans of which eight rows are
/// forwarded, and a question of 64.
class walk_case {
 public:
  walk_case(int requests, int spans, bool slow)
      : requests_(requests),
        spans_(spans),
        slow_(slow),
        rows_(requests * (8 * spans + 64)),
        plan_(plan_device_repair(hypic::family_id::gated_deltanet, {16, heads, dim, dim}, {}, hypic::dtype::bf16, rows_,
                                 requests, requests)),
        operators_(bodies() * matrix),
        end_states_(bodies() * matrix),
        states_(static_cast<std::size_t>(requests * heads) * matrix),
        o_(static_cast<std::size_t>(rows_ * heads * dim)) {
    fill_normal(operators_.data(), bodies() * matrix, 3, 0.5f / std::sqrt(static_cast<float>(dim)));
    fill_normal(end_states_.data(), bodies() * matrix, 4, 1.0f);
    make_rows();
    make_tables();
  }

  row time(std::string name) {
    states_.poison();
    o_.poison();
    double const ms = median_ms(
        [&](cudaStream_t stream) { expect_ok(seam_repair(plan_, tables_, {.stream = hypic::stream_ref{stream}})); });
    auto const body = static_cast<double>(bodies() * matrix);
    auto const all_rows = static_cast<double>(rows_);
    double const row_bytes = 2.0 * dim * (16.0 + 16.0 + 2.0 * heads) + 8.0 * heads;
    return {.name = std::move(name),
            .shape = std::to_string(requests_) + " requests, " + std::to_string(spans_) + " spans x 8 + 64 rows, " +
                     std::to_string(heads) + " heads, D " + std::to_string(dim),
            .gates = slow_ ? "slow" : "mixed",
            .ms = ms,
            .error = error(),
            .bytes = 8.0 * body + all_rows * row_bytes + 4.0 * static_cast<double>(states_.bytes() / 4),
            .flop = 2.0 * body * dim + all_rows * heads * 8.0 * matrix};
  }

 private:
  static constexpr int heads = 32;
  static constexpr int dim = 128;
  static constexpr std::size_t matrix = std::size_t{dim} * dim;
  using half = __nv_bfloat16;

  std::size_t bodies() const { return static_cast<std::size_t>(requests_ * spans_ * heads); }

  void make_rows() {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    auto const unit = [&](std::vector<half>& to) {
      float vector[dim];
      float squares = 0.0f;
      for (float& x : vector) x = normal(random), squares += x * x;
      for (float const x : vector) to.push_back(__float2bfloat16(x / std::sqrt(squares)));
    };
    for (int i = 0; i < rows_ * 16; ++i) unit(q_), unit(k_);
    for (int i = 0; i < rows_ * heads * dim; ++i) v_.push_back(__float2bfloat16(normal(random)));
    for (int i = 0; i < rows_ * heads; ++i) {
      float const logit = 4.0f + normal(random);
      gates_.push_back(slow_ ? -1e-3f * std::abs(normal(random)) : -std::log1p(std::exp(-logit)));
      beta_.push_back(1.0f / (1.0f + std::exp(-normal(random))));
    }
  }

  void make_tables() {
    std::vector<hypic::seam_span> spans;
    std::vector<hypic::seam_chain> chains;
    std::vector<hypic::device_cached_span> records;
    std::int64_t row = 0;
    for (int request = 0; request < requests_; ++request) {
      chains.push_back({static_cast<std::int64_t>(spans.size()), spans_ + 1, -1, request});
      for (int span = 0; span < spans_; ++span, row += 8) {
        spans.push_back({row, 8, static_cast<std::int32_t>(records.size()), 8, true});
        auto const first = records.size() * heads * matrix;
        records.push_back({.body = {operators_.data() + first, nullptr, end_states_.data() + first}});
      }
      spans.push_back({row, 64, -1, 0, false});
      row += 64;
    }
    tables_ = {.inputs = {arrays_.upload(q_), arrays_.upload(k_), arrays_.upload(v_), arrays_.upload(gates_),
                          arrays_.upload(beta_)},
               .o = o_.data(),
               .states = states_.data(),
               .spans = arrays_.upload(spans),
               .chains = arrays_.upload(chains),
               .records = arrays_.upload(records)};
  }

  /// The final state of some heads.
  double error() const {
    double worst = 0.0;
    for (int const request : {0, requests_ - 1}) {
      for (int const head : {0, heads - 1}) worst = std::max(worst, error_of(request, head));
    }
    return worst;
  }
  double error_of(int request, int head) const {
    oracle::head run(oracle::recurrence::delta_rule, dim, dim);
    run.start();
    int row = request * (8 * spans_ + 64);
    for (int span = 0; span < spans_; ++span, row += 8) {
      for (int i = 0; i < 8; ++i) step(run, row + i, head);
      auto const first = static_cast<std::size_t>((request * spans_ + span) * heads + head) * matrix;
      auto const op = operators_.read(first, matrix);
      auto const added = end_states_.read(first, matrix);
      auto state = oracle::product({op.begin(), op.end()}, run.state(), dim, dim, dim);
      for (std::size_t i = 0; i < matrix; ++i) state[i] += static_cast<double>(added[i]);
      run.start(std::move(state));
    }
    for (int i = 0; i < 64; ++i) step(run, row + i, head);
    return relative_error(states_.read(static_cast<std::size_t>(request * heads + head) * matrix, matrix), run.state());
  }
  void step(oracle::head& run, int row, int head) const {
    std::vector<double> key(dim), value(dim);
    for (int d = 0; d < dim; ++d) {
      auto const at = static_cast<std::size_t>(d);
      key[at] = static_cast<double>(__bfloat162float(k_[static_cast<std::size_t>((row * 16 + head / 2) * dim + d)]));
      value[at] = static_cast<double>(__bfloat162float(v_[static_cast<std::size_t>((row * heads + head) * dim + d)]));
    }
    auto const at = static_cast<std::size_t>(row * heads + head);
    double const gate = static_cast<double>(gates_[at]);
    run.step(key.data(), value.data(), &gate, static_cast<double>(beta_[at]));
  }

  int requests_, spans_;
  bool slow_;
  int rows_;
  hypic::device_repair_plan plan_;
  hypic::repair_tables tables_;
  device_memory<float> operators_, end_states_, states_;
  device_memory<half> o_;
  std::vector<half> q_, k_, v_;
  std::vector<float> gates_, beta_;
  device_arrays arrays_;
};

}  // namespace hypic_benchmarks
