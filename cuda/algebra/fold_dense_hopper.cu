// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/algebra/dense_item.cuh"
#include "cuda/algebra/fold_kernels.hpp"
#include "cuda/core/hopper.cuh"
#include "cuda/core/launch.cuh"

/// X <- T X + S0 with fp32 accuracy on tensor cores. Both factors are split into a high and a low half-precision part,
/// rows scaled by powers of two before, and three of the four products are summed in fp32 (the fourth is below 2^-22).
/// X stays in registers, transposed, from the chain's first run to its last: a product's result is the next one's left
/// operand, without a way through shared memory.
///
///   producer warp     brings slices of T to shared memory
///   converter group   makes T's high and low parts, laid out for the tensor cores; two operands in turn
///   math groups       64 columns of X each: split X, multiply, add the end state
///
/// Blocks are persistent; each takes every gridDim.x-th item, and what an item computes does not depend on which.
namespace hypic::inline v0 {
namespace {

constexpr int dim = 128;
constexpr int group_threads = 128;
constexpr int math_groups = 2;
constexpr int threads = (math_groups + 2) * group_threads;
constexpr int slice_rows = 32;
constexpr int slices = dim / slice_rows;  // of one operator
constexpr int stages = 4;
constexpr unsigned slice_bytes = slice_rows * dim * sizeof(float);
constexpr int half_row = 64;  // elements of a row in one tile
constexpr int half_tiles = dim / half_row;

struct operand {
  __half high[half_tiles][dim * half_row];
  __half low[half_tiles][dim * half_row];
};

struct shared_memory {
  operand operands[2];
  float staged[stages][slice_rows * dim];
  float undo[2][dim];  // what undoes the scale of a row of T
  hopper::barrier staged_full[stages], staged_empty[stages];
  hopper::barrier operand_full[2], operand_empty[2];
};
constexpr std::size_t shared_bytes = sizeof(shared_memory) + 1024;  // room to align it

/// A place in a ring, and the parity of the phase that it is in.
struct ring_place {
  unsigned count = 0;
  template <int Places>
  __device__ unsigned place() const {
    return count % Places;
  }
  template <int Places>
  __device__ unsigned filled() const {  // what a reader waits for
    return count / Places % 2;
  }
  template <int Places>
  __device__ unsigned emptied() const {  // what a writer waits for
    return filled<Places>() ^ 1u;
  }
};

/// A power of two that brings `largest` to [2^11, 2^12), and its inverse. Values that are not finite stay so.
struct row_scale {
  float scale, undo;
  __device__ explicit row_scale(float largest) {
    auto const exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 0xffu);
    int const biased = min(265 - exponent, 253);
    scale = __uint_as_float(static_cast<unsigned>(biased) << 23);
    undo = __uint_as_float(static_cast<unsigned>(254 - biased) << 23);
  }
};

__device__ std::uint32_t bits(__half2 value) { return *reinterpret_cast<std::uint32_t*>(&value); }

/// Two scaled values as the sum of two pairs of halves.
__device__ void split(float one, float two, std::uint32_t& high, std::uint32_t& low) {
  __half2 const rounded = __floats2half2_rn(one, two);
  high = bits(rounded);
  low = bits(__floats2half2_rn(one - __low2float(rounded), two - __high2float(rounded)));
}

/// Calls `visit(item)` for each item of this block, an item being one head's state or composed operator.
template <class Visit>
__device__ void for_each_item(chain_plan const& plan, chain_tables const& tables, Visit visit) {
  std::int64_t const kinds = plan.composes ? 2 : 1;
  auto const items = plan.chains * plan.dims.value_heads * kinds;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    dense_item const item(plan, tables, i / kinds, static_cast<int>(i % kinds) * dim, dim);
    if (item.wanted()) visit(item);
  }
}

class producer {
 public:
  __device__ explicit producer(shared_memory& shared) : shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ void serve(dense_item const& item) {
    for (std::int64_t run = 0; run < item.runs(); ++run) {
      auto const* const op = item.operators<float>(run);
      for (int slice = 0; slice < slices; ++slice) bring(op + slice * slice_rows * dim);
    }
  }

 private:
  __device__ void bring(float const* from) {
    auto const place = next_.place<stages>();
    auto& full = shared_.staged_full[place];
    float* const to = shared_.staged[place];
    shared_.staged_empty[place].wait(next_.emptied<stages>());
    if (is_aligned<16>(from)) {
      if (lane_ == 0) {
        full.arrive_expecting(slice_bytes);
        hopper::copy_bulk(to, from, slice_bytes, full);
      }
    } else {
      for (unsigned i = lane_; i < slice_rows * dim; i += 32) to[i] = __ldg(from + i);
      __syncwarp();
      if (lane_ == 0) full.arrive();
    }
    __syncwarp();
    ++next_.count;
  }

  shared_memory& shared_;
  unsigned lane_;
  ring_place next_;
};

class converter {
 public:
  __device__ explicit converter(shared_memory& shared)
      : shared_(shared), thread_(threadIdx.x % group_threads), row_(thread_ / 4), part_(thread_ % 4) {}

  __device__ void serve(dense_item const& item) {
    for (std::int64_t run = 0; run < item.runs(); ++run) {
      auto const place = operand_.place<2>();
      shared_.operand_empty[place].wait(operand_.emptied<2>());
      for (int slice = 0; slice < slices; ++slice) convert(place, slice * slice_rows + static_cast<int>(row_));
      hopper::publish_stores();
      shared_.operand_full[place].arrive();
      ++operand_.count;
    }
  }

 private:
  /// Four threads convert a row, eight elements at a time; neighbouring rows go in another order, so that neither
  /// their reads nor their writes meet in a bank.
  __device__ void convert(unsigned place, int row) {
    unsigned const odd = row_ & 1u;
    auto const stage = staged_.place<stages>();
    shared_.staged_full[stage].wait(staged_.filled<stages>());
    auto const* const from = reinterpret_cast<float4 const*>(shared_.staged[stage] + row_ * dim);
    float4 values[4][2];
    float largest = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      auto const piece = piece_of(i);
      float4 const one = from[2 * piece + odd];
      float4 const two = from[2 * piece + (odd ^ 1u)];
      values[i][0] = odd == 0 ? one : two;
      values[i][1] = odd == 0 ? two : one;
      largest = fmaxf(largest, fmaxf(largest_of(one), largest_of(two)));
    }
    __syncwarp();
    if (thread_ % 32 == 0) shared_.staged_empty[stage].arrive_after(largest);
    ++staged_.count;

    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    row_scale const by(largest);
    if (part_ == 0) shared_.undo[place][row] = by.undo;
    auto& to = shared_.operands[place];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) write(to, row, piece_of(i), values[i], by.scale);
  }

  __device__ unsigned piece_of(unsigned i) const { return 4 * (i ^ (row_ & 1u)) + part_; }

  __device__ static float largest_of(float4 const& v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  }

  __device__ static void write(operand& to, int row, unsigned piece, float4 const (&v)[2], float scale) {
    uint4 high, low;
    split(v[0].x * scale, v[0].y * scale, high.x, low.x);
    split(v[0].z * scale, v[0].w * scale, high.y, low.y);
    split(v[1].x * scale, v[1].y * scale, high.z, low.z);
    split(v[1].z * scale, v[1].w * scale, high.w, low.w);
    auto const tile = piece / 8;
    auto const offset = hopper::swizzled_tile::offset(row, static_cast<int>(piece % 8));
    *reinterpret_cast<uint4*>(reinterpret_cast<char*>(to.high[tile]) + offset) = high;
    *reinterpret_cast<uint4*>(reinterpret_cast<char*>(to.low[tile]) + offset) = low;
  }

  shared_memory& shared_;
  unsigned thread_, row_, part_;
  ring_place staged_, operand_;
};

/// 64 columns of X. As the tensor cores lay out 64 x 128 sums, a thread holds rows key = 8 j + 2 t + c of columns
/// column_ + h: x_[4 j + 2 h + c], t being its place among four threads.
class math_group {
 public:
  __device__ math_group(shared_memory& shared, unsigned group) : shared_(shared) {
    unsigned const thread = threadIdx.x % group_threads;
    column_ = static_cast<int>(group * 64 + thread / 32 * 16 + thread % 32 / 4 * 2);
    key_ = static_cast<int>(thread % 4 * 2);
  }

  __device__ void serve(dense_item const& item) {
    start(item);
    for (std::int64_t run = 0; run < item.runs(); ++run) {
      step(item, run);
      write(item.prefix(run));
    }
    write(item.result());
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 64; ++i) finite &= static_cast<bool>(isfinite(x_[i]));
    if (!finite) item.flag_non_finite();
  }

 private:
  __device__ int key_at(int i) const { return i / 4 * 8 + key_ + i % 2; }
  __device__ int column_at(int i) const { return column_ + i / 2 % 2; }

  __device__ void start(dense_item const& item) {
    auto const given = recomputed(item.given());
#pragma unroll
    for (int i = 0; i < 64; ++i) x_[i] = given ? given(key_at(i), column_at(i)) : item.start(key_at(i), column_at(i));
  }

  __device__ void write(matrix_ref<float> to) const {
    if (!to) return;
    to = recomputed(to);
#pragma unroll
    for (int i = 0; i < 64; ++i) to(key_at(i), column_at(i)) = x_[i];
  }

  /// Hides the strides from the compiler, which would else keep 64 offsets for the whole chain.
  template <class T>
  __device__ static matrix_ref<T> recomputed(matrix_ref<T> matrix) {
    asm volatile("" : "+l"(matrix.row_stride), "+l"(matrix.column_stride));
    return matrix;
  }

  __device__ void step(dense_item const& item, std::int64_t run) {
    float undo_column[2];
    std::uint32_t high[8][4], low[8][4];
    split_x(high, low, undo_column);

    float end_states[64];
    read_end_states<0>(item, run, end_states);
    auto const place = operand_.place<2>();
    shared_.operand_full[place].wait(operand_.filled<2>());
    begin_products(shared_.operands[place], high, low);
    hopper::products_wait<1>();  // the low part's registers are free, and take the other end states
    read_end_states<32>(item, run, end_states);
    hopper::products_wait<0>();
    hopper::fix(x_);
    float const read = finish(shared_.undo[place], undo_column, end_states);
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.operand_empty[place].arrive_after(read);
    ++operand_.count;
  }

  __device__ void split_x(std::uint32_t (&high)[8][4], std::uint32_t (&low)[8][4], float (&undo)[2]) const {
    float largest[2] = {};
#pragma unroll
    for (int i = 0; i < 64; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(x_[i]));
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 2));
      row_scale const by(largest[h]);
      scale[h] = by.scale;
      undo[h] = by.undo;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float const by = scale[i % 2];
      split(x_[2 * i] * by, x_[2 * i + 1] * by, high[i / 4][i % 4], low[i / 4][i % 4]);
    }
  }

  /// x_ = (split X)^T T^T, queued in two groups: first what reads the low part of X. The small products come first.
  __device__ void begin_products(operand const& right, std::uint32_t (&high)[8][4], std::uint32_t (&low)[8][4]) {
    hopper::products_begin(x_, high, low);
#pragma unroll
    for (int s = 0; s < 8; ++s) hopper::product_64_128_16(x_, low[s], slice_of(right.high, s), s > 0);
    hopper::products_commit();
#pragma unroll
    for (int s = 0; s < 8; ++s) hopper::product_64_128_16(x_, high[s], slice_of(right.low, s), true);
#pragma unroll
    for (int s = 0; s < 8; ++s) hopper::product_64_128_16(x_, high[s], slice_of(right.high, s), true);
    hopper::products_commit();
  }

  __device__ static std::uint64_t slice_of(__half const (&tiles)[half_tiles][dim * half_row], int s) {
    using hopper::swizzled_tile;
    return swizzled_tile::descriptor(tiles[s / 4]) + static_cast<unsigned>(s % 4) * swizzled_tile::next_16;
  }

  /// Half of the end states of x_, from the First-th on.
  template <int First>
  __device__ void read_end_states(dense_item const& item, std::int64_t run, float (&to)[64]) const {
    auto const* const from = item.composes() ? nullptr : item.end_state(run, column_);
    bool const pairs = is_aligned<8>(from);
#pragma unroll
    for (int i = First; i < First + 32; i += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        auto const* const at = from + key_at(i + c) * dim;
        float2 two{0.0f, 0.0f};
        if (from != nullptr)
          two = pairs ? __ldg(reinterpret_cast<float2 const*>(at)) : float2{__ldg(at), __ldg(at + 1)};
        to[i + c] = two.x;
        to[i + 2 + c] = two.y;
      }
    }
  }

  /// Returns the largest of the scales that it read.
  __device__ float finish(float const* undo, float const (&undo_column)[2], float const (&end_states)[64]) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      float const undo_row = undo[key_at(i)];
      largest = fmaxf(largest, undo_row);
      x_[i] = x_[i] * undo_row * undo_column[i / 2 % 2] + end_states[i];
    }
    return largest;
  }

  shared_memory& shared_;
  int column_, key_;
  ring_place operand_;
  float x_[64];
};

__device__ void initialise(shared_memory& shared) {
  for (auto& full : shared.staged_full) full.init(1);
  for (auto& empty : shared.staged_empty) empty.init(group_threads / 32);
  for (auto& full : shared.operand_full) full.init(group_threads);
  for (auto& empty : shared.operand_empty) empty.init(math_groups * group_threads / 32);
  hopper::publish_barriers();
}

__global__ void __launch_bounds__(threads, 1) dense_hopper_kernel(chain_plan plan, chain_tables tables) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  auto const misaligned = hopper::shared_address(raw) % 1024;
  auto& shared = *reinterpret_cast<shared_memory*>(raw + (1024 - misaligned) % 1024);
  if (threadIdx.x == 0) initialise(shared);
  __syncthreads();

  unsigned const group = threadIdx.x / group_threads;
  if (group < math_groups) {
    hopper::take_registers<208>();
    math_group math(shared, group);
    for_each_item(plan, tables, [&](dense_item const& item) { math.serve(item); });
  } else if (group == math_groups) {
    hopper::give_registers<72>();
    converter convert(shared);
    for_each_item(plan, tables, [&](dense_item const& item) { convert.serve(item); });
  } else {
    hopper::give_registers<24>();
    if (threadIdx.x % group_threads >= 32) return;
    producer produce(shared);
    for_each_item(plan, tables, [&](dense_item const& item) { produce.serve(item); });
  }
#endif
}

}  // namespace

status fold_dense_hopper(chain_plan const& plan, chain_tables const& tables, device_limits const& limits,
                         device_exec const& ex) noexcept {
  auto const items = plan.chains * plan.dims.value_heads * (plan.composes ? 2 : 1);
  auto const blocks = static_cast<unsigned>(items < limits.multiprocessors ? items : limits.multiprocessors);
  if (auto const s = outcome_of(allow_shared_memory(dense_hopper_kernel, shared_bytes)); s != status::ok) return s;
  dense_hopper_kernel<<<blocks, threads, shared_bytes, ex.stream.handle()>>>(plan, tables);
  return outcome_of(cudaGetLastError());
}

}  // namespace hypic::inline v0
