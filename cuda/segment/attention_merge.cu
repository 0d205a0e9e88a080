// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/segment/attention_tile.cuh"

namespace hypic::inline v0 {
namespace {

constexpr int warps = 8;
constexpr int widest = 256;
constexpr int floats = 4;  // of o that a lane reads at once
constexpr int reads = widest / (32 * floats);

__device__ void put(float const (&values)[floats], float* to) {
  *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
}
template <class T>
__device__ void put(float const (&values)[floats], T* to) {
  for (int i = 0; i < floats; ++i) to[i] = static_cast<T>(values[i]);
}

/// A warp makes the result of one query.
template <class T>
__device__ void merge_query(attention_call const& call, query_tile const& tile, int query) {
  int const lane = static_cast<int>(threadIdx.x % 32);
  auto const& plan = call.plan;
  auto const seen = tile.seen(query);
  int const first = seen.first / split_keys;
  int const end = (seen.end + split_keys - 1) / split_keys;
  auto const stride = plan.total_rows * plan.query_heads;  // from split to split
  auto const place = tile.place(query);

  float largest = -INFINITY;
  for (int split = first + lane; split < end; split += 32)
    largest = fmaxf(largest, call.split_sums[split * stride + place].x);
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(whole_warp, largest, step));

  query_result result(call, tile.head(query), largest);
  float values[reads][floats] = {};
#pragma unroll 4
  for (int split = first; split < end; ++split) {
    float const weight = result.add(call.split_sums[split * stride + place]);
    auto const* const from = call.split_o + (split * stride + place) * plan.value_dim;
#pragma unroll
    for (int i = 0; i < reads; ++i) {
      int const column = (i * 32 + lane) * floats;
      if (column >= plan.value_dim) continue;
      auto const part = *reinterpret_cast<float4 const*>(from + column);
      values[i][0] = fmaf(weight, part.x, values[i][0]);
      values[i][1] = fmaf(weight, part.y, values[i][1]);
      values[i][2] = fmaf(weight, part.z, values[i][2]);
      values[i][3] = fmaf(weight, part.w, values[i][3]);
    }
  }
  auto* const o = static_cast<T*>(call.tables.o) + tile.row(query) * plan.o.row + tile.head(query) * plan.o.head;
#pragma unroll
  for (int i = 0; i < reads; ++i) {
    int const column = (i * 32 + lane) * floats;
    if (column >= plan.value_dim) continue;
#pragma unroll
    for (float& value : values[i]) value = result.value(value);
    put(values[i], o + column);
  }
  if (lane == 0 && call.tables.lse != nullptr) call.tables.lse[place] = result.lse();
}

template <class T>
__global__ void __launch_bounds__(32 * warps) merge_kernel(const __grid_constant__ attention_call call) {
  query_tile const tile(call, blockIdx.x, warps);
  int const query = static_cast<int>(threadIdx.x / 32);
  if (query < tile.queries()) merge_query<T>(call, tile, query);
}

template <class T>
cudaError_t merge(attention_call const& call, cudaStream_t stream) noexcept {
  auto const blocks = tile_capacity(call, warps) * static_cast<unsigned>(call.plan.kv_heads);
  merge_kernel<T><<<blocks, 32 * warps, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t merge_splits(attention_call const& call, cudaStream_t stream) noexcept {
  switch (call.plan.type) {
    case dtype::f16: return merge<__half>(call, stream);
    case dtype::bf16: return merge<__nv_bfloat16>(call, stream);
    default: return merge<float>(call, stream);
  }
}

}  // namespace hypic::inline v0
