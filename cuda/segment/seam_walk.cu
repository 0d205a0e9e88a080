// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/core/launch.cuh"
#include "cuda/segment/seam_walk.hpp"

/// A block of threads walks 32 values of one head of one chain from its first span to its last. Between rows the state
/// stays in registers: sixteen threads hold one value's column, in runs of four keys. For a dense body it passes through
/// shared memory, where each thread makes some rows of two columns of T S. The next rows are read while these are run,
/// and a body is read while the rows before it are.
namespace hypic::inline v0 {
namespace {

constexpr int threads = 512;
constexpr int columns = 32;  // values of a block
constexpr int batch = 16;    // rows that are brought to shared memory at a time: one a warp
constexpr int parts = 16;    // threads of one column
constexpr int depth = 32;    // columns of T in one slice
constexpr float expansion_tolerance = 0x1p-6f;

/// `Keys`: Dk rounded up, 128 or 256; keys beyond Dk are 0 throughout.
template <int Keys>
struct memory {
  static constexpr int slice_row = depth + 4;         // so that no two rows of a product meet in a bank
  static constexpr int stages = Keys <= 128 ? 4 : 2;  // slices under way
  float slices[stages][Keys * slice_row];             // columns of T
  float end_state[Keys * columns];
  float x[Keys * columns];  // by `x_place`
  float k[batch][Keys], q[batch][Keys], decay[batch][Keys];
  float v[batch][columns];
  float beta[batch];
  float q_times_k[batch];
};

/// Where a state's element lies in shared memory: threads that hold a column meet in no bank, nor do those that multiply
/// by pairs of columns.
__device__ inline int x_place(int key, int column) { return key * columns + (column ^ (key >> 2 & 15) << 1); }

/// Element `at` of an array of the rows' type, as it lies there: what has been read may still be under way.
__device__ unsigned raw(dtype type, void const* from, std::int64_t at) {
  if (type == dtype::f32) return __ldg(static_cast<unsigned const*>(from) + at);
  return __ldg(static_cast<unsigned short const*>(from) + at);
}
__device__ float widened(dtype type, unsigned bits) {
  switch (type) {
    case dtype::f32: return __uint_as_float(bits);
    case dtype::f16: return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    case dtype::bf16: break;
  }
  return __uint_as_float(bits << 16);
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

/// Sums over the threads of a column.
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

/// Up to sixteen rows of a chain, in the order in which it is walked.
struct row_batch {
  std::int64_t span = 0;   // of the chain
  std::int64_t first = 0;  // row, of the inputs or of the record
  int rows = 0;
  bool cached = false;  // whether they are a record's
  bool last = false;    // whether the span's body, if it has one, comes next
};

/// The batches of a chain one after the other: each span's forwarded rows, then the cached head rows that were not
/// forwarded. Spans outside of the inputs are left out; one without rows is a batch without rows.
class batches {
 public:
  __device__ batches(seam_span const* spans, std::int64_t count, std::int64_t total_rows)
      : spans_(spans), count_(count), total_rows_(total_rows) {}

  __device__ bool next(row_batch& to) {
    if (done_ == 0) {
      while (index_ < count_ && !in_inputs(spans_[index_])) ++index_;
      if (index_ >= count_) return false;
      span_ = spans_[index_];
      all_ = span_.cached < 0 ? span_.rows : max(span_.rows, std::int64_t{span_.head_rows});
    }
    bool const cached = done_ >= span_.rows && span_.cached >= 0;
    auto const end = cached ? all_ : span_.rows;
    to.span = index_;
    to.rows = static_cast<int>(min(std::int64_t{batch}, end - done_));
    to.first = cached ? done_ : span_.first_row + done_;
    to.cached = cached;
    done_ += to.rows;
    to.last = done_ >= all_;
    if (to.last) done_ = 0, ++index_;
    return true;
  }

 private:
  __device__ bool in_inputs(seam_span const& span) const {
    return span.first_row >= 0 && span.rows >= 0 && span.rows <= total_rows_ - span.first_row;
  }
  seam_span const* spans_;
  std::int64_t count_, total_rows_;
  std::int64_t index_ = 0;
  std::int64_t done_ = 0;  // rows of the span
  std::int64_t all_ = 0;
  seam_span span_;
};

/// One row on its way to shared memory: a lane's part of it.
template <int Keys>
struct row_in_flight {
  static constexpr int held = Keys / 32;
  unsigned k[held], q[held];  // raw; q of cached rows: the other dimensions of turned keys
  float gate[held];
  unsigned v;  // raw
  float beta;
};

__device__ inline void copy_async(float* to, float const* from, bool there) {
  auto const address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  int const bytes = there ? 4 : 0;  // what is not there is zero
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void copy_async_16(float* to, float const* from) {
  auto const address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
__device__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

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
    spans_ = tables_.spans + through.first_span;
    load(through.initial_slot);
    batches all(spans_, through.spans, plan_.total_rows);
    row_batch now, ahead;
    row_in_flight<Keys> rows;
    bool more = all.next(ahead);
    if (more) read(ahead, rows);
    while (more) {
      now = ahead;
      auto const& span = spans_[now.span];
      __syncthreads();  // the rows before are used up
      publish(now, rows);
      if (now.last && span.has_body && dense()) fetch_body(tables_.records[span.cached]);
      more = all.next(ahead);
      if (more) read(ahead, rows);
      __syncthreads();
#pragma unroll 2
      for (int row = 0; row < now.rows; ++row) step(row);
      if (!now.cached && tables_.o != nullptr) write_outputs(now);
      if (now.last && span.has_body) apply(tables_.records[span.cached]);
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

  __device__ bool dense() const { return shape_.form == operator_form::dense; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  /// Each warp begins to read one row.
  __device__ void read(row_batch const& from, row_in_flight<Keys>& to) const {
    if (warp() >= from.rows) return;
    auto const* const record = from.cached ? tables_.records + spans_[from.span].cached : nullptr;
    auto const& source = record == nullptr ? tables_.inputs : record->head;
    auto const& strides = record == nullptr ? plan_.inputs : plan_.head;
    auto const* const turn = record == nullptr ? nullptr : record->turn;
    auto const row = from.first + warp();
    auto const k_row = row * strides.k[0] + key_head_ * strides.k[1];
    auto const q_row = row * strides.q[0] + key_head_ * strides.q[1];
    auto const gate_row = row * strides.gates[0] + head_ * strides.gates[1];
#pragma unroll
    for (int i = 0; i < to.held; ++i) {
      int const key = i * 32 + lane();
      bool const there = key < plan_.dims.key_dim;
      to.k[i] = there ? raw(plan_.rows, source.k, k_row + key) : 0u;
      to.gate[i] = there ? __ldg(source.gates + gate_row + (shape_.gate_per_channel ? key : 0)) : 0.0f;
      to.q[i] = 0u;
      if (!there) continue;
      if (record == nullptr && tables_.o != nullptr) to.q[i] = raw(plan_.rows, source.q, q_row + key);
      if (turn != nullptr) to.q[i] = raw(plan_.rows, source.k, k_row + turn_of(plan_, turn, key).other);
    }
    auto const v_at = row * strides.v[0] + head_ * strides.v[1] + first_value_ + lane();
    to.v = lane() < values_ ? raw(plan_.rows, source.v, v_at) : 0u;
    to.beta = shape_.delta_rule ? __ldg(source.beta + row * strides.beta[0] + head_ * strides.beta[1]) : 0.0f;
  }

  /// Each warp puts the row that it has read into shared memory, as the recurrence consumes it.
  __device__ void publish(row_batch const& from, row_in_flight<Keys> const& row) {
    if (warp() >= from.rows) return;
    unsigned found = 0;
    auto const* const turn = from.cached ? tables_.records[spans_[from.span].cached].turn : nullptr;
    float k[row_in_flight<Keys>::held], q[row_in_flight<Keys>::held];
    float k_squares = 0.0f;
    float q_squares = 0.0f;
#pragma unroll
    for (int i = 0; i < row.held; ++i) {
      int const key = i * 32 + lane();
      bool const there = key < plan_.dims.key_dim;
      k[i] = widened(plan_.rows, row.k[i]);
      q[i] = widened(plan_.rows, row.q[i]);
      if (turn != nullptr && there) {
        auto const turned = turn_of(plan_, turn, key);
        if (turned.other != key) k[i] = turned.cosine * k[i] + turned.sine * q[i];
      }
      if (from.cached) q[i] = 0.0f;
      k_squares += k[i] * k[i];
      q_squares += q[i] * q[i];
      if (there) found |= gate_flags(plan_.options.gates, row.gate[i]);
      shared_.decay[warp()][key] = there ? decay_of(plan_.options.gates, row.gate[i]) : 0.0f;
    }
    k_squares = sum_of_warp(k_squares);
    q_squares = sum_of_warp(q_squares);
    float const v = widened(plan_.rows, row.v);
    found |= finite_flag(k_squares) | finite_flag(q_squares) | finite_flag(v) | finite_flag(row.beta);
    float k_scale = 1.0f;
    float q_scale = plan_.options.q_scale;
    if (plan_.options.l2_normalize) {
      k_scale = 1.0f / sqrtf(k_squares + plan_.options.l2_epsilon);
      q_scale /= sqrtf(q_squares + plan_.options.l2_epsilon);
      k_squares *= k_scale * k_scale;
    }
    float q_times_k = 0.0f;
#pragma unroll
    for (int i = 0; i < row.held; ++i) {
      shared_.k[warp()][i * 32 + lane()] = k[i] * k_scale;
      shared_.q[warp()][i * 32 + lane()] = q[i] * q_scale;
      q_times_k = fmaf(q[i] * q_scale, k[i] * k_scale, q_times_k);
    }
    q_times_k = sum_of_warp(q_times_k);
    shared_.v[warp()][lane()] = v;
    if (lane() == 0) shared_.beta[warp()] = row.beta, shared_.q_times_k[warp()] = q_times_k;
    if (shape_.delta_rule && fabsf(1.0f - row.beta * k_squares) > 1.0f + expansion_tolerance)
      found |= value_flag::expansive_update;
    if (!from.cached) flags_ |= found;
  }

  __device__ static unsigned finite_flag(float value) {
    return isfinite(value) ? 0u : static_cast<unsigned>(value_flag::non_finite);
  }

  /// S <- Diag(a) S, then S <- S + k d^T, where d is v, or b (v - S^T k) under the delta rule. The output is
  /// S^T q + (q k) d with the S in between, so that both sums over keys are made at once; it takes v's place.
  __device__ void step(int row) {
    float k[held], q[held], decays[held];
    take(shared_.k[row], k);
    take(shared_.q[row], q);
    take(shared_.decay[row], decays);
    float k_sums[2] = {};
    float q_sums[2] = {};
#pragma unroll
    for (int i = 0; i < held; ++i) {
      x_[i] *= decays[i];
      k_sums[i % 2] = fmaf(k[i], x_[i], k_sums[i % 2]);
      q_sums[i % 2] = fmaf(q[i], x_[i], q_sums[i % 2]);
    }
    float const k_sum = sum_of_column(k_sums[0] + k_sums[1]);
    float const q_sum = sum_of_column(q_sums[0] + q_sums[1]);
    float const v = shared_.v[row][column_];
    float const added = shape_.delta_rule ? shared_.beta[row] * (v - k_sum) : v;
#pragma unroll
    for (int i = 0; i < held; ++i) x_[i] = fmaf(k[i], added, x_[i]);
    __syncwarp();  // all threads of the column have read v
    if (part_ == 0) shared_.v[row][column_] = fmaf(shared_.q_times_k[row], added, q_sum);
  }

  /// Writes the outputs that the steps have left, a warp each row.
  __device__ void write_outputs(row_batch const& of) const {
    __syncthreads();
    if (warp() >= of.rows || lane() >= values_) return;
    narrow(plan_.rows, shared_.v[warp()][lane()], tables_.o,
           (of.first + warp()) * plan_.output[0] + head_ * plan_.output[1] + first_value_ + lane());
  }

  /// This thread's keys of a row.
  __device__ void take(float const (&from)[Keys], float (&to)[held]) const {
#pragma unroll
    for (int i = 0; i < held; i += 4) {
      auto const four = *reinterpret_cast<float4 const*>(from + key_at(i));
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  }

  /// S <- T S + R S0.
  __device__ void apply(device_cached_span const& record) {
    auto const* const end_state = record.body.end_states + head_ * plan_.end_state_head_stride + first_value_;
    auto const* const op = operators_of(record);
    if (dense()) {
      apply_dense(op);
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

  static constexpr int stages = memory<Keys>::stages;
  static constexpr int tile_rows = Keys / 32;  // of T S, which a thread makes for two columns

  /// Begins to bring a dense body to shared memory: its end state and the first slices of T, a group of copies each.
  __device__ void fetch_body(device_cached_span const& record) {
    auto const* const end_state = record.body.end_states + head_ * plan_.end_state_head_stride + first_value_;
    for (int at = static_cast<int>(threadIdx.x); at < plan_.dims.key_dim * columns; at += threads) {
      bool const there = at % columns < values_;
      copy_async(shared_.end_state + at, end_state + (there ? at / columns * plan_.dims.value_dim + at % columns : 0),
                 there);
    }
    for (int slice = 0; slice < stages; ++slice) fetch_slice(operators_of(record), slice);
  }
  __device__ float const* operators_of(device_cached_span const& record) const {
    return static_cast<float const*>(record.body.operators) + head_ * plan_.operator_head_stride;
  }
  /// Columns outside of T are zero; a slice beyond it is an empty group.
  __device__ void fetch_slice(float const* op, int slice) {
    int const key_dim = plan_.dims.key_dim;
    int const first = slice * depth;
    float* const to = shared_.slices[slice % stages];
    bool const whole = first + depth <= key_dim && key_dim % 4 == 0 && is_aligned<16>(op);
    if (whole) {
      for (int at = static_cast<int>(threadIdx.x) * 4; at < key_dim * depth; at += threads * 4)
        copy_async_16(to + at / depth * memory<Keys>::slice_row + at % depth,
                      op + at / depth * key_dim + first + at % depth);
    } else if (first < key_dim) {
      for (int at = static_cast<int>(threadIdx.x); at < key_dim * depth; at += threads) {
        bool const there = first + at % depth < key_dim;
        copy_async(to + at / depth * memory<Keys>::slice_row + at % depth,
                   op + (there ? at / depth * key_dim + first + at % depth : 0), there);
      }
    }
    copies_commit();
  }

  __device__ void apply_dense(float const* op) {
    int const row = static_cast<int>(threadIdx.x) / 16 * tile_rows;
    int const column = static_cast<int>(threadIdx.x) % 16 * 2;
    float sums[tile_rows][2] = {};
#pragma unroll
    for (int i = 0; i < held; ++i) shared_.x[x_place(key_at(i), column_)] = x_[i];
    int const slices = (plan_.dims.key_dim + depth - 1) / depth;
    for (int slice = 0; slice < slices; ++slice) {
      copies_wait<stages - 1>();
      __syncthreads();
      multiply(shared_.slices[slice % stages], slice * depth, row, column, sums);
      if (slices > stages) __syncthreads();  // the slice is used up
      fetch_slice(op, slice + stages);
    }
    copies_wait<0>();
    __syncthreads();  // the state before is used up
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) {
      bool const there = row + r < plan_.dims.key_dim;
      auto const added = *reinterpret_cast<float2 const*>(shared_.end_state + (row + r) * columns + column);
      *reinterpret_cast<float2*>(shared_.x + x_place(row + r, column)) = {there ? sums[r][0] + added.x : 0.0f,
                                                                          there ? sums[r][1] + added.y : 0.0f};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < held; ++i) x_[i] = shared_.x[x_place(key_at(i), column_)];
  }

  __device__ void multiply(float const* slice, int first, int row, int column, float (&sums)[tile_rows][2]) const {
#pragma unroll 4
    for (int j = 0; j < depth; j += 4) {
      float2 right[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        right[i] = *reinterpret_cast<float2 const*>(shared_.x + x_place(first + j + i, column));
#pragma unroll
      for (int r = 0; r < tile_rows; ++r) {
        auto const left = *reinterpret_cast<float4 const*>(slice + (row + r) * memory<Keys>::slice_row + j);
        float const four[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[r][0] = fmaf(four[i], right[i].x, sums[r][0]);
          sums[r][1] = fmaf(four[i], right[i].y, sums[r][1]);
        }
      }
    }
  }

  device_repair_plan const& plan_;
  walk_shape const& shape_;
  repair_tables const& tables_;
  memory<Keys>& shared_;
  seam_span const* spans_ = nullptr;
  std::int64_t chain_;
  int head_, key_head_, first_value_, values_, column_, part_;
  unsigned flags_ = 0;
  float x_[held];
};

template <int Keys>
__global__ void __launch_bounds__(threads)
    walk_kernel(device_repair_plan plan, walk_shape shape, repair_tables tables) {
  extern __shared__ float4 lent[];
  walk<Keys>(plan, shape, tables, *reinterpret_cast<memory<Keys>*>(lent)).run();
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
