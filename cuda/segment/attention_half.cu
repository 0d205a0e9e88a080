// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/segment/attention_tile.cuh"

namespace hypic::inline v0 {
namespace {

struct f16 {
  using element = __half;
  static constexpr unsigned exponent = 0x7c00;
  static __device__ unsigned pack(float low, float high) {
    auto const both = __floats2half2_rn(low, high);
    return reinterpret_cast<unsigned const&>(both);
  }
  static __device__ float2 unpack(unsigned both) { return __half22float2(reinterpret_cast<__half2 const&>(both)); }
  static __device__ void multiply(unsigned const (&left)[4], unsigned right0, unsigned right1, float (&sums)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
  }
};

struct bf16 {
  using element = __nv_bfloat16;
  static constexpr unsigned exponent = 0x7f80;
  static __device__ unsigned pack(float low, float high) {
    auto const both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<unsigned const&>(both);
  }
  static __device__ float2 unpack(unsigned both) {
    return __bfloat1622float2(reinterpret_cast<__nv_bfloat162 const&>(both));
  }
  static __device__ void multiply(unsigned const (&left)[4], unsigned right0, unsigned right1, float (&sums)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
  }
};

template <class Type>
__device__ bool finite_low(unsigned both) {
  return (both & Type::exponent) != Type::exponent;
}
template <class Type>
__device__ bool finite_high(unsigned both) {
  return finite_low<Type>(both >> 16);
}

/// A block of threads carries 16 queries a warp through the keys. Shared memory holds the queries and two stages of a
/// block of keys and of their values, rows of `dim` elements whose pieces of 16 bytes are swizzled.
template <class Type, int Dim, int Warps, int Keys>
struct tile {
  using type = Type;
  using element = typename Type::element;
  static constexpr int dim = Dim;
  static constexpr int threads = 32 * Warps;
  static constexpr int queries = 16 * Warps;
  static constexpr int keys = Keys;
  static constexpr int pieces = Dim / 8;  // of a row
  static constexpr unsigned row_bytes = Dim * 2;
  static constexpr unsigned block_bytes = Keys * row_bytes;
  static constexpr unsigned query_bytes = queries * row_bytes;
  static constexpr unsigned bytes = query_bytes + 4 * block_bytes;

  static constexpr __device__ unsigned keys_at(int stage) {
    return query_bytes + static_cast<unsigned>(stage) * block_bytes;
  }
  static constexpr __device__ unsigned values_at(int stage) { return keys_at(2 + stage); }
  static __device__ unsigned offset(int row, int piece) {
    return static_cast<unsigned>(row) * row_bytes + static_cast<unsigned>(piece ^ (row & 7)) * 16;
  }
};

/// Copies 16 bytes without waiting, or writes zeros. Nothing is read from where there is nothing.
__device__ void copy_16(unsigned to, void const* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
__device__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ void wait_for_groups() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

__device__ void read_matrices(unsigned at, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
__device__ void read_transposed(unsigned at, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}

__device__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Starts the copy of rows of `dim` elements, zeros behind. Of `Rows` rows those of `there` exist; `row(i)` is one of them.
template <class Tile, int Rows, class Row>
__device__ void copy_rows(unsigned to, int dim, key_range const& there, Row const& row) {
#pragma unroll
  for (int i = 0; i < Rows * Tile::pieces / Tile::threads; ++i) {
    int const at = static_cast<int>(threadIdx.x) + i * Tile::threads;
    int const piece = at % Tile::pieces;
    int const wanted = at / Tile::pieces;
    auto const* const from = row(min(max(wanted, there.first), there.end - 1)) + piece * 8;
    copy_16(to + Tile::offset(wanted, piece), from, there.holds(wanted) && piece * 8 < dim);
  }
}

/// What a thread carries: parts of rows `lane / 4` and `lane / 4 + 8` of its warp's 16, as the tensor cores lay them out.
template <class Tile>
struct carried {
  float o[Tile::dim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};  // of the scores, in units of log 2
  float sum[2] = {};                          // of weights: this thread's columns
};

template <class Tile>
using scores_of = float[Tile::keys / 8][4];

/// scores = q k^T of the warp's 16 queries.
template <class Tile>
__device__ void multiply_keys(unsigned queries, unsigned keys, scores_of<Tile>& scores) {
  int const lane = static_cast<int>(threadIdx.x % 32);
  int const matrix = lane / 8;
  auto const swizzle = static_cast<unsigned>(lane & 7) * 16;
  auto const q_row = queries + static_cast<unsigned>((matrix & 1) * 8 + lane % 8) * Tile::row_bytes;
  auto const k_row = keys + static_cast<unsigned>(matrix / 2 * 8 + lane % 8) * Tile::row_bytes;
  auto const q_piece = static_cast<unsigned>(matrix / 2) * 16 ^ swizzle;
  auto const k_piece = static_cast<unsigned>(matrix & 1) * 16 ^ swizzle;
#pragma unroll
  for (int n = 0; n < Tile::keys / 8; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll
  for (unsigned k = 0; k < Tile::dim / 16; ++k) {
    unsigned left[4];
    read_matrices(q_row + (k * 32 ^ q_piece), left);
#pragma unroll
    for (unsigned n = 0; n < Tile::keys / 16; ++n) {
      unsigned right[4];
      read_matrices(k_row + n * 16 * Tile::row_bytes + (k * 32 ^ k_piece), right);
      Tile::type::multiply(left, right[0], right[1], scores[2 * n]);
      Tile::type::multiply(left, right[2], right[3], scores[2 * n + 1]);
    }
  }
}

/// o += weights v.
template <class Tile>
__device__ void multiply_values(scores_of<Tile> const& weights, unsigned values, carried<Tile>& own) {
  int const lane = static_cast<int>(threadIdx.x % 32);
  int const matrix = lane / 8;
  auto const v_row = values + static_cast<unsigned>((matrix & 1) * 8 + lane % 8) * Tile::row_bytes;
  auto const v_piece = static_cast<unsigned>(matrix / 2) * 16 ^ static_cast<unsigned>(lane & 7) * 16;
#pragma unroll
  for (unsigned k = 0; k < Tile::keys / 16; ++k) {
    auto const& low = weights[2 * k];
    auto const& high = weights[2 * k + 1];
    unsigned const left[4] = {Tile::type::pack(low[0], low[1]), Tile::type::pack(low[2], low[3]),
                              Tile::type::pack(high[0], high[1]), Tile::type::pack(high[2], high[3])};
#pragma unroll
    for (unsigned n = 0; n < Tile::dim / 16; ++n) {
      unsigned right[4];
      read_transposed(v_row + k * 16 * Tile::row_bytes + (n * 32 ^ v_piece), right);
      Tile::type::multiply(left, right[0], right[1], own.o[2 * n]);
      Tile::type::multiply(left, right[2], right[3], own.o[2 * n + 1]);
    }
  }
}

/// Scales the scores to units of log 2.
template <class Tile>
__device__ void scale(device_attention_plan const& plan, scores_of<Tile>& scores) {
  constexpr float log2_e = 1.4426950408889634f;
  float const cap = plan.soft_cap;
  if (cap > 0.0f) {
    float const inner = plan.scale / cap;
#pragma unroll
    for (auto& four : scores) {
#pragma unroll
      for (float& score : four) score = cap * log2_e * tanhf(score * inner);
    }
  } else {
    float const factor = plan.scale * log2_e;
#pragma unroll
    for (auto& four : scores) {
#pragma unroll
      for (float& score : four) score *= factor;
    }
  }
}

/// The keys that the thread's two queries do not see get no weight. `first` is the block's first key.
template <class Tile>
__device__ void mask(key_range const (&seen)[2], int first, scores_of<Tile>& scores) {
  int const column = first + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int n = 0; n < Tile::keys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!seen[i / 2].holds(column + n * 8 + i % 2)) scores[n][i] = -INFINITY;
    }
  }
}

/// Turns scores into weights relative to the largest score so far, and what was carried likewise.
template <class Tile>
__device__ void weigh(scores_of<Tile>& scores, carried<Tile>& own) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = own.largest[half];
#pragma unroll
    for (auto const& four : scores) largest = fmaxf(largest, fmaxf(four[2 * half], four[2 * half + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(whole_warp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(whole_warp, largest, 2));
    float const base = largest == -INFINITY ? 0.0f : largest;
    float const kept = exp2_of(own.largest[half] - base);
    own.largest[half] = largest;
    own.sum[half] *= kept;
#pragma unroll
    for (auto& four : scores) {
      four[2 * half] = exp2_of(four[2 * half] - base);
      four[2 * half + 1] = exp2_of(four[2 * half + 1] - base);
      own.sum[half] += four[2 * half] + four[2 * half + 1];
    }
#pragma unroll
    for (auto& four : own.o) four[2 * half] *= kept, four[2 * half + 1] *= kept;
  }
}

/// Takes values that are not finite out of a block: a weight of 0 times such a value would reach queries that do not see
/// it. Those that do get it added as it is. All threads of the block call it; `memory` is the start of shared memory.
template <class Tile>
__device__ void isolate_non_finite(unsigned char* memory, unsigned values, key_range const (&seen)[2], int first,
                                   carried<Tile>& own) {
  using type = typename Tile::type;
  constexpr int words = Tile::keys * Tile::dim / 2;
  auto* const all = reinterpret_cast<unsigned*>(memory + values);
  bool found = false;
  for (int at = static_cast<int>(threadIdx.x); at < words; at += Tile::threads)
    found |= !finite_low<type>(all[at]) || !finite_high<type>(all[at]);
  if (__syncthreads_or(found) == 0) return;

  auto const column_bytes = threadIdx.x % 4 * 4;
#pragma unroll 1
  for (int key = 0; key < Tile::keys; ++key) {
    bool const sees[2] = {seen[0].holds(first + key), seen[1].holds(first + key)};
    if (!sees[0] && !sees[1]) continue;
#pragma unroll
    for (int n = 0; n < Tile::dim / 8; ++n) {
      auto const both = *reinterpret_cast<unsigned const*>(memory + values + Tile::offset(key, n) + column_bytes);
      auto const numbers = type::unpack(both);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (sees[half] && !finite_low<type>(both)) own.o[n][2 * half] += numbers.x;
        if (sees[half] && !finite_high<type>(both)) own.o[n][2 * half + 1] += numbers.y;
      }
    }
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < words; at += Tile::threads) {
    if (!finite_low<type>(all[at])) all[at] &= 0xffff0000u;
    if (!finite_high<type>(all[at])) all[at] &= 0x0000ffffu;
  }
  __syncthreads();
}

/// Walks the keys of `range` in blocks counted from the split's first key.
template <class Tile>
__device__ void walk(attention_call const& call, query_tile const& queries, unsigned char* memory, int begin,
                     tile_range const& range, key_range const (&seen)[2], carried<Tile>& own) {
  using element = typename Tile::element;
  auto const& plan = call.plan;
  auto const shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  auto const copy_block = [&](int block, int stage) {
    int const first = block * Tile::keys;
    auto const there = range.some.within(first, Tile::keys);
    auto const copy = [&](unsigned at, int dim, cache_rows<element> const& rows) {
      if (rows.in_pages()) {
        copy_rows<Tile, Tile::keys>(shared + at, dim, there, [&](int i) { return rows.in_page(begin + first + i); });
      } else {
        copy_rows<Tile, Tile::keys>(shared + at, dim, there, [&](int i) { return rows.in_piece(begin + first + i); });
      }
    };
    copy(Tile::keys_at(stage), plan.key_dim, keys_of<element>(call, queries));
    copy(Tile::values_at(stage), plan.value_dim, values_of<element>(call, queries));
    end_group();
  };

  auto const own_queries = shared + threadIdx.x / 32 * 16 * Tile::row_bytes;
  int const end = (range.some.end + Tile::keys - 1) / Tile::keys;
  int block = range.some.first / Tile::keys;
  copy_block(block, 0);
  for (int stage = 0; block < end; ++block, stage ^= 1) {
    wait_for_groups();
    __syncthreads();
    if (block + 1 < end) copy_block(block + 1, stage ^ 1);
    scores_of<Tile> scores;
    int const first = block * Tile::keys;
    bool const all_see = range.all_see(first, first + Tile::keys);
    multiply_keys<Tile>(own_queries, shared + Tile::keys_at(stage), scores);
    scale<Tile>(plan, scores);
    if (!all_see) mask<Tile>(seen, first, scores);
    weigh<Tile>(scores, own);
    if (!all_see) isolate_non_finite<Tile>(memory, Tile::values_at(stage), seen, first, own);
    multiply_values<Tile>(scores, shared + Tile::values_at(stage), own);
  }
}

/// Writes the thread's parts of its two queries.
template <class Tile>
__device__ void write(attention_call const& call, query_tile const& queries, int split, carried<Tile>& own) {
  constexpr float log_2 = 0.6931471805599453f;
  int const lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = own.sum[half];
    sum += __shfl_xor_sync(whole_warp, sum, 1);
    sum += __shfl_xor_sync(whole_warp, sum, 2);
    int const query = static_cast<int>(threadIdx.x / 32) * 16 + half * 8 + lane / 4;
    if (query >= queries.queries()) continue;
    query_output<typename Tile::element> const out(call, queries, query, split, {own.largest[half] * log_2, sum},
                                                   lane % 4 == 0);
#pragma unroll
    for (int n = 0; n < Tile::dim / 8; ++n) {
      int const column = n * 8 + lane % 4 * 2;
      if (column >= call.plan.value_dim) continue;
      float const values[2] = {own.o[n][2 * half], own.o[n][2 * half + 1]};
      if (out.partial() != nullptr) {
        *reinterpret_cast<float2*>(out.partial() + column) = {values[0], values[1]};
      } else {
        *reinterpret_cast<unsigned*>(out.o() + column) = Tile::type::pack(out.value(values[0]), out.value(values[1]));
      }
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads) half_kernel(const __grid_constant__ attention_call call) {
  extern __shared__ uint4 dynamic[];
  __shared__ int joined[4];
  auto* const memory = reinterpret_cast<unsigned char*>(dynamic);
  query_tile const queries(call, blockIdx.x, Tile::queries);
  if (queries.queries() == 0) return;

  int const split = static_cast<int>(blockIdx.y);
  int const begin = split * split_keys;
  key_range seen[2] = {};
  tile_range own_range;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int const query = static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + half * 8;
    if (query >= queries.queries()) continue;
    seen[half] = queries.seen(query).within(begin, split_keys);
    own_range.add(seen[half]);
  }
  auto const range = join(own_range, joined);
  if (range.some.empty() && call.split_o != nullptr) return;  // what is not written is not merged

  carried<Tile> own;
  if (!range.some.empty()) {
    auto const* const q = static_cast<typename Tile::element const*>(call.tables.q);
    copy_rows<Tile, Tile::queries>(
        static_cast<unsigned>(__cvta_generic_to_shared(memory)), call.plan.key_dim, {0, queries.queries()},
        [&](int query) { return q + queries.row(query) * call.plan.q.row + queries.head(query) * call.plan.q.head; });
    walk<Tile>(call, queries, memory, begin, range, seen, own);
  }
  write<Tile>(call, queries, split, own);
}

template <class Tile>
cudaError_t launch(attention_call const& call, cudaStream_t stream) noexcept {
  if (auto const error = allow_shared_memory(half_kernel<Tile>, Tile::bytes); error != cudaSuccess) return error;
  dim3 const grid(tile_capacity(call, Tile::queries) * static_cast<unsigned>(call.plan.kv_heads),
                  static_cast<unsigned>(splits_of(call.plan)));
  half_kernel<Tile><<<grid, Tile::threads, Tile::bytes, stream>>>(call);
  return cudaGetLastError();
}

/// Shared memory of one thread block of the current device.
std::size_t shared_memory_limit() noexcept {
  int device = 0;
  int bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return 0;
  return static_cast<std::size_t>(bytes);
}

template <class Type>
cudaError_t launch_for(attention_call const& call, cudaStream_t stream) noexcept {
  using large = tile<Type, 256, 8, 64>;
  int const dim = call.plan.key_dim > call.plan.value_dim ? call.plan.key_dim : call.plan.value_dim;
  if (dim <= 64) return launch<tile<Type, 64, 8, 64>>(call, stream);
  if (dim <= 128) return launch<tile<Type, 128, 8, 64>>(call, stream);
  if (large::bytes + 1024 <= shared_memory_limit()) return launch<large>(call, stream);
  return launch<tile<Type, 256, 4, 32>>(call, stream);
}

}  // namespace

cudaError_t attend_half(attention_call const& call, cudaStream_t stream) noexcept {
  return call.plan.type == dtype::f16 ? launch_for<f16>(call, stream) : launch_for<bf16>(call, stream);
}

}  // namespace hypic::inline v0
