// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include "cuda/algebra/dense_item.cuh"
#include "cuda/algebra/fold_kernels.hpp"
#include "cuda/core/launch.cuh"

namespace hypic::inline v0 {
namespace {

constexpr int threads = 256;
constexpr int depth = 16;  // columns of T in one slice

/// A block of threads carries `Columns` columns of X through the chain, in shared memory and in turns between two
/// buffers; each thread makes 8 x 4 elements of T X.
template <int Rows, int Columns>
struct tile {
  static constexpr int rows = Rows;
  static constexpr int columns = Columns;
  static constexpr int slice_row = Rows + 4;  // of a transposed slice, padded
  static constexpr std::size_t x_floats = static_cast<std::size_t>(Rows) * Columns;
  static constexpr std::size_t slice_floats = static_cast<std::size_t>(depth) * slice_row;
  static constexpr std::size_t bytes = 2 * (x_floats + slice_floats) * sizeof(float);
  static constexpr int slice_loads = Rows * depth / threads;
  static_assert(Rows / 8 * (Columns / 4) == threads);
};

struct stored_f32 {
  using element = float;
  static __device__ float value(element stored, int) { return stored; }
};
struct stored_f16 {
  using element = __half;
  static __device__ float value(element stored, int exponent) { return ldexpf(__half2float(stored), exponent); }
};

/// One slice of T, [rows, depth], on its way from global memory to shared memory, where it lies transposed.
template <class Tile, class Stored>
struct slice_in_flight {
  float values[Tile::slice_loads];

  __device__ void read(typename Stored::element const* op, int exponent, int key_dim, int first) {
#pragma unroll
    for (int i = 0; i < Tile::slice_loads; ++i) {
      int const at = static_cast<int>(threadIdx.x) + i * threads;
      int const row = at / depth;
      int const column = first + at % depth;
      bool const there = row < key_dim && column < key_dim;
      values[i] = there ? Stored::value(op[row * key_dim + column], exponent) : 0.0f;
    }
  }
  __device__ void write(float* slice) const {
#pragma unroll
    for (int i = 0; i < Tile::slice_loads; ++i) {
      int const at = static_cast<int>(threadIdx.x) + i * threads;
      slice[at % depth * Tile::slice_row + at / depth] = values[i];
    }
  }
};

/// sums += slice^T x, for the thread's 8 rows and 4 columns.
template <class Tile>
__device__ void multiply(float const* slice, float const* x, int row, int column, float (&sums)[8][4]) {
#pragma unroll
  for (int j = 0; j < depth; ++j) {
    auto const low = *reinterpret_cast<float4 const*>(slice + j * Tile::slice_row + row);
    auto const high = *reinterpret_cast<float4 const*>(slice + j * Tile::slice_row + row + 4);
    auto const from = *reinterpret_cast<float4 const*>(x + j * Tile::columns + column);
    float const left[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float const right[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(left[r], right[c], sums[r][c]);
    }
  }
}

template <class Tile, class Stored>
__global__ void __launch_bounds__(threads, 2) dense_kernel(chain_plan plan, chain_tables tables) {
  extern __shared__ float4 memory[];
  auto* const x = reinterpret_cast<float*>(memory);  // two of them
  auto* const slices = x + 2 * Tile::x_floats;       // likewise
  dense_item const item(plan, tables, blockIdx.x, blockIdx.y * Tile::columns, Tile::columns);
  if (!item.wanted()) return;

  int const key_dim = plan.dims.key_dim;
  int const row = static_cast<int>(threadIdx.x) / (Tile::columns / 4) * 8;
  int const column = static_cast<int>(threadIdx.x) % (Tile::columns / 4) * 4;
  auto const before = item.given();
  for (int at = static_cast<int>(threadIdx.x); at < Tile::rows * Tile::columns; at += threads) {
    int const r = at / Tile::columns;
    int const c = at % Tile::columns;
    bool const given = before && r < key_dim && item.has(c);
    x[at] = given ? before(r, c) : item.start(r, c);
    x[Tile::x_floats + at] = 0.0f;
  }

  int current = 0;  // of the two
  slice_in_flight<Tile, Stored> next;
  unsigned found = 0;
  for (std::int64_t run = 0; run < item.runs(); ++run) {
    auto const* const op = item.template operators<typename Stored::element>(run);
    int const exponent = item.exponent(run);
    float sums[8][4];
    item.read_end_state(run, row, column, sums);
    next.read(op, exponent, key_dim, 0);
    for (int first = 0, buffer = 0; first < key_dim; first += depth, buffer ^= 1) {
      auto* const slice = slices + buffer * Tile::slice_floats;
      next.write(slice);
      __syncthreads();
      if (first + depth < key_dim) next.read(op, exponent, key_dim, first + depth);
      multiply<Tile>(slice, x + current * Tile::x_floats + first * Tile::columns, row, column, sums);
    }
    current ^= 1;
    auto const prefix = item.prefix(run);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (row + r >= key_dim) continue;
        x[current * Tile::x_floats + (row + r) * Tile::columns + column + c] = sums[r][c];
        if (!item.has(column + c)) continue;
        found |= isfinite(sums[r][c]) ? 0u : 1u;
        if (prefix) prefix(row + r, column + c) = sums[r][c];
      }
    }
    __syncthreads();
  }
  if (item.runs() == 0) __syncthreads();
  auto const after = item.result();
  for (int at = static_cast<int>(threadIdx.x); after && at < key_dim * Tile::columns; at += threads) {
    int const c = at % Tile::columns;
    if (item.has(c)) after(at / Tile::columns, c) = x[current * Tile::x_floats + at];
  }
  if (found != 0) item.flag_non_finite();
}

template <class Tile, class Stored>
cudaError_t launch(chain_plan const& plan, chain_tables const& tables, cudaStream_t stream) noexcept {
  auto const across = [](int dim) { return static_cast<unsigned>((dim + Tile::columns - 1) / Tile::columns); };
  dim3 const grid(static_cast<unsigned>(plan.chains * plan.dims.value_heads),
                  across(plan.dims.value_dim) + (plan.composes ? across(plan.dims.key_dim) : 0u));
  if (auto const error = allow_shared_memory(dense_kernel<Tile, Stored>, Tile::bytes); error != cudaSuccess)
    return error;
  dense_kernel<Tile, Stored><<<grid, threads, Tile::bytes, stream>>>(plan, tables);
  return cudaGetLastError();
}

template <class Tile>
cudaError_t launch(chain_plan const& plan, chain_tables const& tables, cudaStream_t stream) noexcept {
  return plan.stored == dtype::f16 ? launch<Tile, stored_f16>(plan, tables, stream)
                                   : launch<Tile, stored_f32>(plan, tables, stream);
}

}  // namespace

status fold_dense_generic(chain_plan const& plan, chain_tables const& tables, device_exec const& ex) noexcept {
  auto const stream = ex.stream.handle();
  return outcome_of(plan.dims.key_dim <= 128 ? launch<tile<128, 64>>(plan, tables, stream)
                                             : launch<tile<256, 32>>(plan, tables, stream));
}

}  // namespace hypic::inline v0
