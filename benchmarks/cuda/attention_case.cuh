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
#include "hypic/cuda/seam_attention.hpp"
#include "report.cuh"

namespace hypic_benchmarks {

/// One attention layer of one request, bf16: seams of eight rows, 2,048 keys apart, and the question of the last rows,
/// over the whole prompt. 16 query heads of 256 dimensions read 2 kv heads.
class attention_case {
 public:
  attention_case(int keys, int question) : keys_(keys) {
    for (int start = 0; start + 2048 <= keys; start += 2048)
      for (int row = 0; row < 8; ++row) positions_.push_back(start + row);
    for (int row = 0; row < question; ++row) positions_.push_back(keys - question + row);
    auto const rows = static_cast<std::int64_t>(positions_.size());
    plan_ = hypic::with_dense_strides({.type = hypic::dtype::bf16,
                                       .query_heads = query_heads,
                                       .kv_heads = kv_heads,
                                       .key_dim = dim,
                                       .value_dim = dim,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                                       .total_rows = rows,
                                       .requests = 1,
                                       .most_keys = keys});
    std::mt19937_64 random(7);
    q_ = normal(random, rows * query_heads * dim);
    k_ = normal(random, std::int64_t{keys} * kv_heads * dim);
    v_ = normal(random, std::int64_t{keys} * kv_heads * dim);
    o_ = std::make_shared<device_memory<half>>(static_cast<std::size_t>(rows * query_heads * dim));
    workspace_ = std::make_shared<device_memory<std::byte>>(static_cast<std::size_t>(plan_.workspace_bytes()));
    std::vector<hypic::attention_request> const request{
        {.first_row = 0, .rows = rows, .key_rows = keys, .keys = arrays_.upload(k_), .values = arrays_.upload(v_)}};
    std::vector<std::int64_t> const positions(positions_.begin(), positions_.end());
    tables_ = {.requests = arrays_.upload(request),
               .positions = arrays_.upload(positions),
               .q = arrays_.upload(q_),
               .o = o_->data()};
  }

  row time(std::string name) {
    double const ms = median_ms([&](cudaStream_t stream) {
      expect_ok(seam_attention(
          plan_, tables_,
          {.stream = hypic::stream_ref{stream}, .workspace = {workspace_->data(), workspace_->bytes()}}));
    });
    double seen = 0.0;
    for (int const position : positions_) seen += position + 1.0;
    return {
        .name = std::move(name),
        .shape = std::to_string(positions_.size()) + " rows over " + std::to_string(keys_) + " keys, 16/2 heads, D 256",
        .ms = ms,
        .error = error(),
        .bytes = 2.0 * static_cast<double>(k_.size() + v_.size() + 2 * q_.size()),
        .flop = seen * query_heads * dim * 4.0};
  }

 private:
  static constexpr int query_heads = 16;
  static constexpr int kv_heads = 2;
  static constexpr int dim = 256;
  using half = __nv_bfloat16;

  static std::vector<half> normal(std::mt19937_64& random, std::int64_t count) {
    std::normal_distribution<float> distribution;
    std::vector<half> values(static_cast<std::size_t>(count));
    for (auto& value : values) value = __float2bfloat16(distribution(random));
    return values;
  }
  /// The largest of some rows and heads.
  double error() const {
    double worst = 0.0;
    auto const rows = static_cast<int>(positions_.size());
    for (int const row : {0, rows / 2, rows - 1}) {
      for (int const head : {0, query_heads - 1}) worst = std::max(worst, error_of(row, head));
    }
    return worst;
  }
  double error_of(int row, int head) const {
    auto const query = static_cast<std::size_t>((row * query_heads + head) * dim);
    auto const kv_head = head / (query_heads / kv_heads);
    auto const at = [&](int key) { return static_cast<std::size_t>(key * kv_heads + kv_head) * dim; };
    auto const wide = [](half value) { return static_cast<double>(__bfloat162float(value)); };
    int const seen = positions_[static_cast<std::size_t>(row)] + 1;
    std::vector<double> scores(static_cast<std::size_t>(seen));
    for (int key = 0; key < seen; ++key) {
      double& score = scores[static_cast<std::size_t>(key)];
      for (std::size_t d = 0; d < dim; ++d) score += wide(q_[query + d]) * wide(k_[at(key) + d]);
      score *= static_cast<double>(plan_.scale);
    }
    double const largest = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    std::vector<double> wanted(dim);
    for (int key = 0; key < seen; ++key) {
      double const weight = std::exp(scores[static_cast<std::size_t>(key)] - largest);
      total += weight;
      for (std::size_t d = 0; d < dim; ++d) wanted[d] += weight * wide(v_[at(key) + d]);
    }
    for (double& value : wanted) value /= total;
    std::vector<float> found;
    for (half const value : o_->read(query, dim)) found.push_back(__bfloat162float(value));
    return relative_error(found, wanted);
  }

  int keys_;
  std::vector<int> positions_;
  hypic::device_attention_plan plan_;
  hypic::device_attention_tables tables_;
  std::vector<half> q_, k_, v_;
  std::shared_ptr<device_memory<half>> o_;
  std::shared_ptr<device_memory<std::byte>> workspace_;
  device_arrays arrays_;
};

}  // namespace hypic_benchmarks
