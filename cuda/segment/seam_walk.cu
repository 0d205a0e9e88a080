// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/core/launch.cuh"
#include "cuda/segment/seam_walk.hpp"

/// A block of threads walks 32 values of one head of one chain from its first span to its last. Between rows the state
/// stays in registers: eight threads hold one value's column, in runs of four keys. For a dense body it passes through
/// shared memory, where each thread makes some rows of two columns of T S.
namespace hypic::inline v0 {
namespace {

constexpr int threads = 256;
constexpr int columns = 32;  // values of a block
constexpr int batch = 8;     // rows that are brought to shared memory at a time: one a warp
constexpr int parts = 8;     // threads of one column
constexpr int depth = 16;    // columns of T in one slice
constexpr float expansion_tolerance = 0x1p-6f;

/// `Keys`: Dk rounded up, 128 or 256; keys beyond Dk are 0 throughout.
template <int Keys>
struct memory {
  static constexpr int x_row =
      columns + 2;  // so that neither layout of the state meets itself in a bank, twice at most
  static constexpr int slice_row = Keys + 4;
  float x[Keys * x_row];
  float slices[2][depth * slice_row];  // of T, transposed
  float k[batch][Keys], q[batch][Keys], decay[batch][Keys];
  float v[batch][columns];
  float beta[batch];
};

/// Element `at` of an array of the rows' type.
__device__ float widened(dtype type, void const* from, std::int64_t at) {
  switch (type) {
    case dtype::f32: return static_cast<float const*>(from)[at];
    case dtype::f16: return __half2float(static_cast<__half const*>(from)[at]);
    case dtype::bf16: break;
  }
  return __bfloat162float(static_cast<__nv_bfloat16 const*>(from)[at]);
}

__device__ void narrow(dtype type, float value, void* to, std::int64_t at) {
  switch (type) {
    case dtype::f32: static_cast<float*>(to)[at] = value; return;
    case dtype::f16: static_cast<__half*>(to)[at] = __float2half_rn(value); return;
    case dtype::bf16: break;
  }
  static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16_rn(value);
}

__device__ float decay_of(gate_space space, float gate) {
  switch (space) {
    case gate_space::natural_log: return expf(gate);
    case gate_space::log2: return exp2f(gate);
    case gate_space::linear: break;
  }
  return gate;
}

__device__ unsigned gate_flags(gate_space space, float gate) {
  if (isnan(gate)) return value_flag::non_finite;
  bool const valid = space == gate_space::linear ? gate >= 0.0f && gate <= 1.0f : gate <= 0.0f;
  return valid ? 0u : static_cast<unsigned>(value_flag::gate_out_of_range);
}

__device__ float sum_of_warp(float value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  return value;
}

/// Sums over the eight threads of a column.
__device__ float sum_of_column(float value) {
  for (int lane = 1; lane < parts; lane *= 2) value += __shfl_xor_sync(~0u, value, lane);
  return value;
}

/// A turn of keys: the other dimension of `key`'s pair, and what it is multiplied by.
struct turned_key {
  int other;
  float cosine, sine;  // key' = cosine key + sine other
};
__device__ turned_key turn_of(device_repair_plan const& plan, float const* turn, int key) {
  int const pairs = plan.rotary_pairs;
  if (turn == nullptr || key >= 2 * pairs) return {key, 1.0f, 0.0f};
  bool const halves = plan.pairing == rotary_pairing::rotate_half;
  int const pair = halves ? key % pairs : key / 2;
  bool const second = halves ? key >= pairs : key % 2 == 1;
  int const other = halves ? (second ? pair : pair + pairs) : key ^ 1;
  return {other, turn[pair], second ? turn[pairs + pair] : -turn[pairs + pair]};
}

/// Where rows come from.
struct row_source {
  device_rows const& rows;
  row_strides const& strides;
  float const* turn;  // of their keys
  bool queries;       // whether q is read
};

template <int Keys>
class walk {
 public:
  __device__ walk(device_repair_plan const& plan, walk_shape const& shape, repair_tables const& tables,
                  memory<Keys>& shared)
      : plan_(plan),
        shape_(shape),
        tables_(tables),
        shared_(shared),
        chain_(blockIdx.x / plan.dims.value_heads),
        head_(static_cast<int>(blockIdx.x % plan.dims.value_heads)),
        key_head_(head_ / (plan.dims.value_heads / plan.dims.key_heads)),
        first_value_(static_cast<int>(blockIdx.y) * columns),
        values_(min(columns, plan.dims.value_dim - first_value_)),
        column_(static_cast<int>(threadIdx.x) / parts),
        part_(static_cast<int>(threadIdx.x) % parts) {}

  __device__ void run() {
    auto const through = tables_.chains[chain_];
    load(through.initial_slot);
    for (std::int64_t i = 0; i < through.spans; ++i) {
      auto const span = tables_.spans[through.first_span + i];
      if (span.first_row < 0 || span.rows < 0 || span.first_row + span.rows > plan_.total_rows) continue;
      forward({tables_.inputs, plan_.inputs, nullptr, tables_.o != nullptr}, span.first_row, span.rows, true);
      if (span.cached < 0) continue;
      auto const& record = tables_.records[span.cached];
      if (span.head_rows > span.rows)
        forward({record.head, plan_.head, record.turn, false}, span.rows, span.head_rows - span.rows, false);
      if (span.has_body) apply(record);
    }
    store(through.final_slot);
    if (flags_ != 0 && tables_.flags != nullptr) atomicOr(tables_.flags + chain_, flags_);
  }

 private:
  static constexpr int held = Keys / parts;  // keys of a column that a thread holds

  /// The key of x_[i].
  __device__ int key_at(int i) const { return i / 4 * (4 * parts) + part_ * 4 + i % 4; }
  __device__ bool in_state(int key) const { return key < plan_.dims.key_dim && column_ < values_; }
  __device__ float* slot(std::int32_t index) const {
    bool const there = index >= 0 && index < plan_.slots && tables_.states != nullptr;
    return there ? tables_.states + index * plan_.slot_stride + head_ * plan_.states.head +
                       (first_value_ + column_) * plan_.states.value
                 : nullptr;
  }
  __device__ void load(std::int32_t index) {
    auto const* const from = slot(index);
#pragma unroll
    for (int i = 0; i < held; ++i)
      x_[i] = from != nullptr && in_state(key_at(i)) ? from[key_at(i) * plan_.states.key] : 0.0f;
  }
  __device__ void store(std::int32_t index) const {
    auto* const to = slot(index);
#pragma unroll
    for (int i = 0; i < held; ++i)
      if (to != nullptr && in_state(key_at(i))) to[key_at(i) * plan_.states.key] = x_[i];
  }

  /// Runs rows from the state; `checked`: their values set flags.
  __device__ void forward(row_source const& from, std::int64_t first, std::int64_t count, bool checked) {
    for (std::int64_t done = 0; done < count; done += batch) {
      int const rows = static_cast<int>(min(std::int64_t{batch}, count - done));
      __syncthreads();  // the rows before are used up
      if (static_cast<int>(threadIdx.x) / 32 < rows) bring(from, first + done + threadIdx.x / 32, checked);
      __syncthreads();
      for (int row = 0; row < rows; ++row) step(row, from.queries, first + done + row);
    }
  }

  /// One warp brings one row to shared memory, as the recurrence consumes it.
  __device__ void bring(row_source const& from, std::int64_t row, bool checked) {
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    auto const k_row = row * from.strides.k[0] + key_head_ * from.strides.k[1];
    auto const gate_row = row * from.strides.gates[0] + head_ * from.strides.gates[1];
    unsigned found = 0;
    float k_squares = 0.0f;
    for (int key = lane; key < Keys; key += 32) {
      bool const there = key < plan_.dims.key_dim;
      auto const turned = turn_of(plan_, from.turn, key);
      float k = there ? widened(plan_.rows, from.rows.k, k_row + key) : 0.0f;
      if (there && turned.other != key)
        k = turned.cosine * k + turned.sine * widened(plan_.rows, from.rows.k, k_row + turned.other);
      float const gate = there ? from.rows.gates[gate_row + (shape_.gate_per_channel ? key : 0)] : 0.0f;
      if (there) found |= gate_flags(plan_.options.gates, gate);
      shared_.k[warp][key] = k;
      shared_.decay[warp][key] = there ? decay_of(plan_.options.gates, gate) : 0.0f;
      k_squares += k * k;
    }
    k_squares = sum_of_warp(k_squares);
    found |= finite_flag(k_squares);
    if (plan_.options.l2_normalize) {
      float const scale = 1.0f / sqrtf(k_squares + plan_.options.l2_epsilon);
      for (int key = lane; key < Keys; key += 32) shared_.k[warp][key] *= scale;
      k_squares *= scale * scale;
    }
    if (from.queries) found |= bring_query(from, row, warp, lane);
    if (lane < columns) {
      auto const v_row = row * from.strides.v[0] + head_ * from.strides.v[1] + first_value_;
      float const v = lane < values_ ? widened(plan_.rows, from.rows.v, v_row + lane) : 0.0f;
      found |= finite_flag(v);
      shared_.v[warp][lane] = v;
    }
    if (shape_.delta_rule) {
      float const beta = from.rows.beta[row * from.strides.beta[0] + head_ * from.strides.beta[1]];
      found |= finite_flag(beta);
      if (fabsf(1.0f - beta * k_squares) > 1.0f + expansion_tolerance) found |= value_flag::expansive_update;
      if (lane == 0) shared_.beta[warp] = beta;
    }
    if (checked) flags_ |= found;
  }

  __device__ unsigned bring_query(row_source const& from, std::int64_t row, int warp, int lane) {
    auto const q_row = row * from.strides.q[0] + key_head_ * from.strides.q[1];
    float squares = 0.0f;
    for (int key = lane; key < Keys; key += 32) {
      float const q = key < plan_.dims.key_dim ? widened(plan_.rows, from.rows.q, q_row + key) : 0.0f;
      shared_.q[warp][key] = q;
      squares += q * q;
    }
    squares = sum_of_warp(squares);
    float scale = plan_.options.q_scale;
    if (plan_.options.l2_normalize) scale /= sqrtf(squares + plan_.options.l2_epsilon);
    for (int key = lane; key < Keys; key += 32) shared_.q[warp][key] *= scale;
    return finite_flag(squares);
  }

  __device__ static unsigned finite_flag(float value) {
    return isfinite(value) ? 0u : static_cast<unsigned>(value_flag::non_finite);
  }

  /// S <- Diag(a) S, then S <- S + k d^T, where d is v, or b (v - S^T k) under the delta rule.
  __device__ void step(int row, bool queries, std::int64_t output_row) {
    float k[held];
    read(shared_.k[row], k);
    float decays[held];
    read(shared_.decay[row], decays);
    float added = shared_.v[row][column_];
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < held; ++i) {
      x_[i] *= decays[i];
      sums[i % 4] = fmaf(k[i], x_[i], sums[i % 4]);
    }
    if (shape_.delta_rule)
      added = shared_.beta[row] * (added - sum_of_column((sums[0] + sums[1]) + (sums[2] + sums[3])));
#pragma unroll
    for (int i = 0; i < held; ++i) x_[i] = fmaf(k[i], added, x_[i]);
    if (!queries) return;

    float q[held];
    read(shared_.q[row], q);
    float outputs[4] = {};
#pragma unroll
    for (int i = 0; i < held; ++i) outputs[i % 4] = fmaf(q[i], x_[i], outputs[i % 4]);
    float const output = sum_of_column((outputs[0] + outputs[1]) + (outputs[2] + outputs[3]));
    if (part_ == 0 && column_ < values_)
      narrow(plan_.rows, output, tables_.o,
             output_row * plan_.output[0] + head_ * plan_.output[1] + first_value_ + column_);
  }

  /// This thread's keys of a row.
  __device__ void read(float const (&from)[Keys], float (&to)[held]) const {
#pragma unroll
    for (int i = 0; i < held; i += 4) {
      auto const four = *reinterpret_cast<float4 const*>(from + key_at(i));
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  }

  /// S <- T S + R S0.
  __device__ void apply(device_cached_span const& record) {
    auto const* const end_state = record.body.end_states + head_ * plan_.end_state_head_stride + first_value_;
    auto const* const op = static_cast<float const*>(record.body.operators) + head_ * plan_.operator_head_stride;
    if (shape_.form == operator_form::dense) {
      apply_dense(op, end_state);
      return;
    }
#pragma unroll
    for (int i = 0; i < held; ++i) {
      int const key = key_at(i);
      if (!in_state(key)) continue;
      auto const turned = turn_of(plan_, record.turn, key);
      float added = end_state[key * plan_.dims.value_dim + column_];
      if (turned.other != key)
        added = turned.cosine * added + turned.sine * end_state[turned.other * plan_.dims.value_dim + column_];
      x_[i] = fmaf(expf(op[shape_.form == operator_form::scalar ? 0 : key]), x_[i], added);
    }
  }

  static constexpr int tile_rows = Keys / 16;  // of T S, which a thread makes for two columns
  static constexpr int slice_loads = Keys * depth / threads;

  __device__ void apply_dense(float const* op, float const* end_state) {
    int const row = static_cast<int>(threadIdx.x) / 16 * tile_rows;
    int const column = static_cast<int>(threadIdx.x) % 16 * 2;
    float loaded[slice_loads];
    load_slice(op, 0, loaded);
    float sums[tile_rows][2];
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        bool const there = row + r < plan_.dims.key_dim && column + c < values_;
        sums[r][c] = there ? __ldg(end_state + (row + r) * plan_.dims.value_dim + column + c) : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < held; ++i) shared_.x[key_at(i) * memory<Keys>::x_row + column_] = x_[i];
    for (int first = 0, buffer = 0; first < plan_.dims.key_dim; first += depth, buffer ^= 1) {
      write_slice(shared_.slices[buffer], loaded);
      __syncthreads();
      if (first + depth < plan_.dims.key_dim) load_slice(op, first + depth, loaded);
      multiply(shared_.slices[buffer], shared_.x + first * memory<Keys>::x_row, row, column, sums);
    }
    __syncthreads();  // the state before is used up
#pragma unroll
    for (int r = 0; r < tile_rows; ++r)
      *reinterpret_cast<float2*>(shared_.x + (row + r) * memory<Keys>::x_row + column) = {sums[r][0], sums[r][1]};
    __syncthreads();
#pragma unroll
    for (int i = 0; i < held; ++i) x_[i] = shared_.x[key_at(i) * memory<Keys>::x_row + column_];
  }

  __device__ void load_slice(float const* op, int first, float (&to)[slice_loads]) const {
#pragma unroll
    for (int i = 0; i < slice_loads; ++i) {
      int const at = static_cast<int>(threadIdx.x) + i * threads;
      int const row = at / depth;
      int const column = first + at % depth;
      bool const there = row < plan_.dims.key_dim && column < plan_.dims.key_dim;
      to[i] = there ? __ldg(op + row * plan_.dims.key_dim + column) : 0.0f;
    }
  }
  __device__ static void write_slice(float* slice, float const (&from)[slice_loads]) {
#pragma unroll
    for (int i = 0; i < slice_loads; ++i) {
      int const at = static_cast<int>(threadIdx.x) + i * threads;
      slice[at % depth * memory<Keys>::slice_row + at / depth] = from[i];
    }
  }
  __device__ static void multiply(float const* slice, float const* x, int row, int column,
                                  float (&sums)[tile_rows][2]) {
#pragma unroll
    for (int j = 0; j < depth; ++j) {
      auto const right = *reinterpret_cast<float2 const*>(x + j * memory<Keys>::x_row + column);
#pragma unroll
      for (int r = 0; r < tile_rows; r += 4) {
        auto const left = *reinterpret_cast<float4 const*>(slice + j * memory<Keys>::slice_row + row + r);
        float const four[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[r + i][0] = fmaf(four[i], right.x, sums[r + i][0]);
          sums[r + i][1] = fmaf(four[i], right.y, sums[r + i][1]);
        }
      }
    }
  }

  device_repair_plan const& plan_;
  walk_shape const& shape_;
  repair_tables const& tables_;
  memory<Keys>& shared_;
  std::int64_t chain_;
  int head_, key_head_, first_value_, values_, column_, part_;
  unsigned flags_ = 0;
  float x_[held];
};

template <int Keys>
__global__ void __launch_bounds__(threads)
    walk_kernel(device_repair_plan plan, walk_shape shape, repair_tables tables) {
  extern __shared__ float4 raw[];
  walk<Keys>(plan, shape, tables, *reinterpret_cast<memory<Keys>*>(raw)).run();
}

template <int Keys>
cudaError_t launch(device_repair_plan const& plan, walk_shape const& shape, repair_tables const& tables,
                   cudaStream_t stream) noexcept {
  dim3 const grid(static_cast<unsigned>(plan.chains * plan.dims.value_heads),
                  static_cast<unsigned>((plan.dims.value_dim + columns - 1) / columns));
  if (auto const error = allow_shared_memory(walk_kernel<Keys>, sizeof(memory<Keys>)); error != cudaSuccess)
    return error;
  walk_kernel<Keys><<<grid, threads, sizeof(memory<Keys>), stream>>>(plan, shape, tables);
  return cudaGetLastError();
}

}  // namespace

status walk_seams(device_repair_plan const& plan, walk_shape const& shape, repair_tables const& tables,
                  device_exec const& ex) noexcept {
  auto const stream = ex.stream.handle();
  return outcome_of(plan.dims.key_dim <= 128 ? launch<128>(plan, shape, tables, stream)
                                             : launch<256>(plan, shape, tables, stream));
}

}  // namespace hypic::inline v0
