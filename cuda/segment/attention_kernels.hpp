// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/core/calls.hpp"
#include "hypic/cuda/seam_attention.hpp"

/// The launchers behind `seam_attention`. Each takes a checked call that has rows and requests.
namespace hypic::inline v0 {

inline constexpr int split_keys = 1024;

/// A call as kernels get it.
struct attention_call {
  device_attention_plan plan;
  device_attention_tables tables;
  int group = 1;                 ///< query heads of one kv head
  float* split_o = nullptr;      ///< [splits, total_rows, query_heads, value_dim], not normalised; null: one split
  float2* split_sums = nullptr;  ///< [splits, total_rows, query_heads]: the largest score, the sum of weights
};

constexpr std::int64_t splits_of(device_attention_plan const& plan) noexcept {
  return plan.most_keys <= split_keys ? 1 : (plan.most_keys + split_keys - 1) / split_keys;
}

/// Tiles of `queries` queries of one kv head that hold the rows of all requests, however these share them.
constexpr unsigned tile_capacity(attention_call const& call, int queries) noexcept {
  auto const& plan = call.plan;
  auto const started = plan.requests < plan.total_rows ? plan.requests : plan.total_rows;
  return static_cast<unsigned>(plan.total_rows * call.group / queries + started);
}

/// Writes o where the call has one split, and else what `merge_splits` merges.
cudaError_t attend_f32(attention_call const& call, cudaStream_t stream) noexcept;
cudaError_t attend_half(attention_call const& call, cudaStream_t stream) noexcept;

cudaError_t merge_splits(attention_call const& call, cudaStream_t stream) noexcept;

}  // namespace hypic::inline v0
