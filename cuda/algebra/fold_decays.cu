// SPDX-License-Identifier: Apache-2.0
#include "cuda/algebra/fold_kernels.hpp"
#include "cuda/core/launch.cuh"
#include "hypic/segment/rows.hpp"

namespace hypic::inline v0 {
namespace {

constexpr int threads = 256;
constexpr int width = 4;      // values of one key channel that a thread carries
constexpr int in_flight = 4;  // runs whose end states are read before the first is used

/// What one thread carries: `width` values of one key channel of one head of one chain.
struct strand {
  chain_plan const& plan;
  chain_tables const& tables;
  std::int64_t head, key, value;
  int count;     // of the values, those that exist
  bool aligned;  // whether four of them can be read at once

  __device__ float decay_log(chain_run const& run) const {
    auto const* const logs = static_cast<float const*>(run.operators) + head * plan.operator_head_stride;
    return logs[plan.form == operator_form::scalar ? 0 : key];
  }
  __device__ void read(chain_run const& run, float (&end_state)[width]) const {
    auto const* const row = run.end_states + head * plan.end_state_head_stride + key * plan.dims.value_dim + value;
    load(row, count, aligned && is_aligned<16>(row), end_state);
  }
  /// The first strand of a channel, or of a head whose operator is scalar, writes the operator.
  __device__ bool owns_operator() const { return value == 0 && (plan.form == operator_form::diagonal || key == 0); }
  __device__ void write_operator(float* operators, double log) const {
    auto const elements = plan.form == operator_form::scalar ? 1 : plan.dims.key_dim;
    operators[head * elements + (plan.form == operator_form::scalar ? 0 : key)] = static_cast<float>(log);
  }
  __device__ void write_prefix(chain_prefix const& prefix, float const (&state)[width], double log) const {
    if (prefix.end_states != nullptr) {
      auto* const row = prefix.end_states + (head * plan.dims.key_dim + key) * plan.dims.value_dim + value;
      for (int c = 0; c < count; ++c) row[c] = state[c];
    }
    if (prefix.operators != nullptr && owns_operator()) write_operator(prefix.operators, log);
  }
};

__device__ unsigned step(float const (&end_state)[width], float log, float (&state)[width]) {
  float const decay = expf(log);
  for (int c = 0; c < width; ++c) state[c] = fmaf(decay, state[c], end_state[c]);
  return log > 0.0f ? static_cast<unsigned>(value_flag::gate_out_of_range) : 0u;
}

__device__ void walk(strand const& of, chain const& through, std::uint32_t* flags) {
  auto const& [plan, tables, head, key, value, count, aligned] = of;
  float state[width] = {};
  if (through.initial != nullptr) {
    auto const* const from = through.initial + head * plan.states.head + key * plan.states.key;
    for (int c = 0; c < count; ++c) state[c] = from[(value + c) * plan.states.value];
  }
  double log_sum = 0.0;
  unsigned found = 0;
  for (std::int64_t run = 0; run < through.runs; run += in_flight) {
    float end_states[in_flight][width];
    float logs[in_flight];
    auto const* const runs = tables.runs + through.first_run + run;
    auto const rest = through.runs - run;
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      if (i >= rest) continue;
      logs[i] = of.decay_log(runs[i]);
      of.read(runs[i], end_states[i]);
    }
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      if (i >= rest) continue;
      found |= step(end_states[i], logs[i], state);
      log_sum += static_cast<double>(logs[i]);
      if (tables.prefixes != nullptr) of.write_prefix(tables.prefixes[through.first_run + run + i], state, log_sum);
    }
  }
  if (through.state != nullptr) {
    auto* const to = through.state + head * plan.states.head + key * plan.states.key;
    for (int c = 0; c < count; ++c) to[(value + c) * plan.states.value] = state[c];
  }
  if (through.operators != nullptr && of.owns_operator()) of.write_operator(through.operators, log_sum);
  for (int c = 0; c < count; ++c) found |= isfinite(state[c]) ? 0u : static_cast<unsigned>(value_flag::non_finite);
  if (found != 0 && flags != nullptr) atomicOr(flags, found);
}

__global__ void __launch_bounds__(threads) decays_kernel(chain_plan plan, chain_tables tables, std::int64_t strands) {
  auto const index = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (index >= strands) return;
  auto const across = (plan.dims.value_dim + width - 1) / width;  // strands of one channel
  auto const value = index % across * width;
  auto const channel = index / across;
  auto const key = channel % plan.dims.key_dim;
  auto const head = channel / plan.dims.key_dim % plan.dims.value_heads;
  auto const which = channel / plan.dims.key_dim / plan.dims.value_heads;
  auto const count = static_cast<int>(min(std::int64_t{width}, plan.dims.value_dim - value));
  walk({plan, tables, head, key, value, count, count == width}, tables.chains[which],
       tables.flags == nullptr ? nullptr : tables.flags + which);
}

}  // namespace

status fold_decays(chain_plan const& plan, chain_tables const& tables, device_exec const& ex) noexcept {
  auto const across = (plan.dims.value_dim + width - 1) / width;
  auto const strands = plan.chains * plan.dims.value_heads * plan.dims.key_dim * across;
  auto const blocks = static_cast<unsigned>((strands + threads - 1) / threads);
  decays_kernel<<<blocks, threads, 0, ex.stream.handle()>>>(plan, tables, strands);
  return outcome_of(cudaGetLastError());
}

}  // namespace hypic::inline v0
