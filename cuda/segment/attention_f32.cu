// SPDX-License-Identifier: Apache-2.0
#include "cuda/segment/attention_tile.cuh"

namespace hypic::inline v0 {
namespace {

constexpr int threads = 256;
constexpr int tile_queries = 32;
constexpr int block_keys = 32;
constexpr int widest = 256;
constexpr int pad = 4;  // floats behind each row of shared memory, which keep its rows in different banks

/// A sum with what its rounding lost. In plain fp32, scores of size 25 or thousands of keys would cost the accuracy.
struct compensated {
  float sum = 0.0f;
  float excess = 0.0f;  // of `sum` over the true one

  __device__ void add(float value) {
    float const wanted = __fsub_rn(value, excess);
    float const next = __fadd_rn(sum, wanted);
    excess = __fsub_rn(__fsub_rn(next, sum), wanted);
    sum = next;
  }
  __device__ void scale(float factor) {
    sum = __fmul_rn(sum, factor);
    excess = __fmul_rn(excess, factor);
  }
  __device__ float value() const { return __fsub_rn(sum, excess); }
  __device__ double exact() const { return static_cast<double>(sum) - static_cast<double>(excess); }
};

__device__ void take(float4 const& from, float (&to)[4]) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}
__device__ void read(float const* from, float (&to)[4]) { take(*reinterpret_cast<float4 const*>(from), to); }

/// Shared memory: queries, a block of keys or values, and its weights, in padded rows.
struct layout {
  float* queries;  // [tile_queries, key_dim]
  float* rows;     // [block_keys, the larger dimension]
  float* weights;  // [tile_queries, block_keys]
  float* kept;     // [tile_queries]: what remains of the sums so far
  int query_stride, row_stride;

  static constexpr int weight_stride = block_keys + pad;
  static constexpr int widest_of(device_attention_plan const& plan) {
    return plan.key_dim > plan.value_dim ? plan.key_dim : plan.value_dim;
  }
  static constexpr std::size_t bytes(device_attention_plan const& plan) {
    auto const floats = tile_queries * (plan.key_dim + pad + weight_stride + 1) + block_keys * (widest_of(plan) + pad);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }
  __device__ layout(device_attention_plan const& plan, float* memory)
      : query_stride(plan.key_dim + pad), row_stride(max(plan.key_dim, plan.value_dim) + pad) {
    queries = memory;
    rows = queries + tile_queries * query_stride;
    weights = rows + block_keys * row_stride;
    kept = weights + tile_queries * weight_stride;
  }
};

/// Copies `count` rows of `dim` floats; `row(i)` is row i, or null: zeros.
template <class Row>
__device__ void copy_rows(float* to, int stride, int count, int dim, Row const& row) {
  int const pieces = dim / 4;
  for (int at = static_cast<int>(threadIdx.x); at < count * pieces; at += threads) {
    int const piece = at % pieces * 4;
    float const* const from = row(at / pieces);
    auto const four = from == nullptr ? float4{} : __ldg(reinterpret_cast<float4 const*>(from + piece));
    *reinterpret_cast<float4*>(to + at / pieces * stride + piece) = four;
  }
}

/// The scores of two queries and two keys, 16 lanes to the same queries.
struct scorer {
  int query = static_cast<int>(threadIdx.x) / 16 * 2;  // and the next
  int key = static_cast<int>(threadIdx.x) % 16;        // and key + 16
  key_range seen[2] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  double sum[2] = {};  // of weights: this thread's keys

  __device__ void multiply(layout const& memory, int dim, compensated (&sums)[2][2]) const {
    auto const* const q = memory.queries + query * memory.query_stride;
    auto const* const k = memory.rows + key * memory.row_stride;
    for (int d = 0; d < dim; d += 8) {
      float parts[2][2] = {};
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        float left[2][4];
        float right[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          read(q + i * memory.query_stride + d + half, left[i]);
          read(k + i * 16 * memory.row_stride + d + half, right[i]);
        }
#pragma unroll
        for (int e = 0; e < 16; ++e)
          parts[e / 8][e / 4 % 2] = fmaf(left[e / 8][e % 4], right[e / 4 % 2][e % 4], parts[e / 8][e / 4 % 2]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[e / 2][e % 2].add(parts[e / 2][e % 2]);
    }
  }

  /// In fp64: half a unit in the last place of a score of 25 would be 1e-6 of its weight.
  __device__ static double score(device_attention_plan const& plan, compensated const& sum) {
    double const scaled = sum.exact() * static_cast<double>(plan.scale);
    double const cap = static_cast<double>(plan.soft_cap);
    return cap > 0.0 ? cap * tanh(scaled / cap) : scaled;
  }

  /// Leaves weights in shared memory. `first` is the block's first key.
  __device__ void weigh(device_attention_plan const& plan, layout const& memory, int first) {
    compensated sums[2][2];
    multiply(memory, plan.key_dim, sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      double scores[2];
      float highest = largest[i];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        scores[j] = seen[i].holds(first + key + 16 * j) ? score(plan, sums[i][j]) : -INFINITY;
        highest = fmaxf(highest, static_cast<float>(scores[j]));
      }
      for (int step = 8; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(whole_warp, highest, step));
      float const base = highest == -INFINITY ? 0.0f : highest;
      float const kept = expf(largest[i] - base);
      largest[i] = highest;
      sum[i] *= static_cast<double>(kept);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float const weight = expf(static_cast<float>(scores[j] - static_cast<double>(base)));
        sum[i] += static_cast<double>(weight);
        memory.weights[(query + i) * layout::weight_stride + key + 16 * j] = weight;
      }
      if (key == 0) memory.kept[query + i] = kept;
    }
  }

  /// Over all keys, for one of the queries: on every lane.
  __device__ float2 sums(int i) const {
    double all = sum[i];
    for (int step = 8; step > 0; step /= 2) all += __shfl_xor_sync(whole_warp, all, step);
    return {largest[i], static_cast<float>(all)};
  }
};

/// Four columns of o of eight queries: the queries are one warp pair's.
struct summer {
  static constexpr int queries = tile_queries / (threads / (widest / 4));
  int query = static_cast<int>(threadIdx.x) / (widest / 4) * queries;
  int column = static_cast<int>(threadIdx.x) % (widest / 4) * 4;
  compensated o[queries][4];

  __device__ void scale(layout const& memory) {
#pragma unroll
    for (int i = 0; i < queries; ++i) {
      float const kept = memory.kept[query + i];
#pragma unroll
      for (auto& sum : o[i]) sum.scale(kept);
    }
  }

  /// A key that a query does not see has weight 0, and yet its value may not be multiplied: it may be NaN.
  template <bool AllSee>
  __device__ void add(layout const& memory, key_range const* seen, int first) {
#pragma unroll 1
    for (int key = 0; key < block_keys; key += 8) {
      float parts[queries][4] = {};
#pragma unroll
      for (int j = key; j < key + 8; ++j) {
        float values[4];
        read(memory.rows + j * memory.row_stride + column, values);
#pragma unroll
        for (int i = 0; i < queries; ++i) {
          if (!AllSee && !seen[query + i].holds(first + j)) continue;
          float const weight = memory.weights[(query + i) * layout::weight_stride + j];
#pragma unroll
          for (int c = 0; c < 4; ++c) parts[i][c] = fmaf(weight, values[c], parts[i][c]);
        }
      }
#pragma unroll
      for (int e = 0; e < queries * 4; ++e) o[e / 4][e % 4].add(parts[e / 4][e % 4]);
    }
  }
};

__device__ void write(attention_call const& call, query_tile const& queries, int split, float2 const* sums,
                      summer const& own) {
  if (own.column >= call.plan.value_dim) return;
#pragma unroll
  for (int i = 0; i < summer::queries; ++i) {
    int const query = own.query + i;
    if (query >= queries.queries()) break;
    query_output<float> const out(call, queries, query, split, sums[query], own.column == 0);
    float const o[4] = {own.o[i][0].value(), own.o[i][1].value(), own.o[i][2].value(), own.o[i][3].value()};
    if (out.partial() != nullptr) {
      *reinterpret_cast<float4*>(out.partial() + own.column) = {o[0], o[1], o[2], o[3]};
    } else {
      *reinterpret_cast<float4*>(out.o() + own.column) = {out.value(o[0]), out.value(o[1]), out.value(o[2]),
                                                          out.value(o[3])};
    }
  }
}

/// Walks the keys of `range` in blocks counted from the split's first key.
__device__ void walk(attention_call const& call, query_tile const& queries, layout const& memory, int begin,
                     tile_range const& range, key_range const* seen, scorer& scores, summer& sums) {
  auto const& plan = call.plan;
  auto const keys = keys_of<float>(call, queries);
  auto const values = values_of<float>(call, queries);
  bool const has_columns = sums.column < plan.value_dim;
  for (int first = range.some.first / block_keys * block_keys; first < range.some.end; first += block_keys) {
    auto const copy = [&](cache_rows<float> const& rows, int dim) {
      __syncthreads();
      copy_rows(memory.rows, memory.row_stride, block_keys, dim,
                [&](int i) { return range.some.holds(first + i) ? rows.row(begin + first + i) : nullptr; });
      __syncthreads();
    };
    copy(keys, plan.key_dim);
    scores.weigh(plan, memory, first);
    copy(values, plan.value_dim);
    if (!has_columns) continue;
    sums.scale(memory);
    if (range.all_see(first, first + block_keys)) {
      sums.add<true>(memory, seen, first);
    } else {
      sums.add<false>(memory, seen, first);
    }
  }
}

__global__ void __launch_bounds__(threads) f32_kernel(const __grid_constant__ attention_call call) {
  extern __shared__ float4 dynamic[];
  __shared__ int joined[4];
  __shared__ key_range seen[tile_queries];
  __shared__ float2 all_sums[tile_queries];
  query_tile const queries(call, blockIdx.x, tile_queries);
  if (queries.queries() == 0) return;

  int const split = static_cast<int>(blockIdx.y);
  int const begin = split * split_keys;
  tile_range own_range;
  if (int const query = static_cast<int>(threadIdx.x); query < tile_queries) {
    bool const there = query < queries.queries();
    seen[query] = there ? queries.seen(query).within(begin, split_keys) : key_range{};
    if (there) own_range.add(seen[query]);
  }
  auto const range = join(own_range, joined);
  if (range.some.empty() && call.split_o != nullptr) return;  // what is not written is not merged

  layout const memory(call.plan, reinterpret_cast<float*>(dynamic));
  scorer scores;
  summer sums;
  scores.seen[0] = seen[scores.query], scores.seen[1] = seen[scores.query + 1];
  if (!range.some.empty()) {
    auto const* const q = static_cast<float const*>(call.tables.q);
    copy_rows(memory.queries, memory.query_stride, tile_queries, call.plan.key_dim, [&](int query) {
      auto const at = queries.row(query) * call.plan.q.row + queries.head(query) * call.plan.q.head;
      return query < queries.queries() ? q + at : nullptr;
    });
    walk(call, queries, memory, begin, range, seen, scores, sums);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    auto const all = scores.sums(i);
    if (scores.key == 0) all_sums[scores.query + i] = all;
  }
  __syncthreads();
  write(call, queries, split, all_sums, sums);
}

}  // namespace

cudaError_t attend_f32(attention_call const& call, cudaStream_t stream) noexcept {
  auto const bytes = layout::bytes(call.plan);
  if (auto const error = allow_shared_memory(f32_kernel, bytes); error != cudaSuccess) return error;
  dim3 const grid(tile_capacity(call, tile_queries) * static_cast<unsigned>(call.plan.kv_heads),
                  static_cast<unsigned>(splits_of(call.plan)));
  f32_kernel<<<grid, threads, bytes, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace hypic::inline v0
