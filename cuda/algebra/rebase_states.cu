// SPDX-License-Identifier: Apache-2.0
#include "cuda/algebra/rebase_states_kernel.hpp"
#include "cuda/core/launch.cuh"

namespace hypic::inline v0 {
namespace {

constexpr int in_flight = rebase_states_grid::in_flight;

/// The elements of one item, by key channel and value.
struct item {
  int one, two;  ///< channels; the same where the channel does not turn
  int value;
  bool turns;
  int pair;

  /// Items go along the output's nearer axis, so that neighbouring threads write neighbouring elements.
  __device__ item(rebase_states_plan const& plan, unsigned index) {
    auto const values = static_cast<unsigned>(plan.dims.value_dim);
    auto const units = static_cast<unsigned>(plan.dims.key_dim - plan.rotary_pairs);
    bool const along_values = plan.out.value <= plan.out.key;
    auto const unit = static_cast<int>(along_values ? index / values : index % units);
    value = static_cast<int>(along_values ? index % values : index / units);
    pair = unit;
    turns = unit < plan.rotary_pairs;
    bool const interleaved = plan.pairing == rotary_pairing::interleaved;
    one = !turns ? unit + plan.rotary_pairs : interleaved ? 2 * unit : unit;
    two = !turns ? one : interleaved ? one + 1 : one + plan.rotary_pairs;
  }
  __device__ std::int64_t offset(state_strides const& strides, int key) const {
    return key * strides.key + value * strides.value;
  }
};

/// The two elements of an item, before and after their turn.
struct item_values {
  float one, two;

  __device__ item_values turned(float cosine, float sine) const {
    return {__fmaf_rn(one, cosine, -__fmul_rn(two, sine)), __fmaf_rn(two, cosine, __fmul_rn(one, sine))};
  }
};

__global__ void __launch_bounds__(rebase_states_grid::threads)
    rebase_states_kernel(rebase_states_plan plan, rebase_state const* states, rebase_states_grid grid) {
  auto const blocks = static_cast<unsigned>(grid.blocks_per_head);
  auto const head = blockIdx.x / blocks % plan.dims.value_heads;
  rebase_state const state = states[blockIdx.x / blocks / plan.dims.value_heads];
  if (state.in == nullptr) return;
  auto const* const in = state.in + head * plan.in.head;
  auto* const out = state.out + head * plan.out.head;
  auto const first = blockIdx.x % blocks * (rebase_states_grid::threads * in_flight) + threadIdx.x;
  auto const items = static_cast<unsigned>(grid.items);

  // Both elements of a pair are one thread's, and are read before either is written: `out` may be `in`.
  item_values values[in_flight];
#pragma unroll
  for (int i = 0; i < in_flight; ++i) {
    auto const index = first + i * rebase_states_grid::threads;
    if (index >= items) continue;
    item const at(plan, index);
    values[i].one = in[at.offset(plan.in, at.one)];
    if (at.turns) values[i].two = in[at.offset(plan.in, at.two)];
  }
#pragma unroll
  for (int i = 0; i < in_flight; ++i) {
    auto const index = first + i * rebase_states_grid::threads;
    if (index >= items) continue;
    item const at(plan, index);
    if (at.turns && state.angles != nullptr)
      values[i] = values[i].turned(__ldg(state.angles + at.pair), __ldg(state.angles + plan.rotary_pairs + at.pair));
    out[at.offset(plan.out, at.one)] = values[i].one;
    if (at.turns) out[at.offset(plan.out, at.two)] = values[i].two;
  }
}

}  // namespace

status launch_rebase_states(rebase_states_plan const& plan, rebase_state const* states,
                            device_exec const& ex) noexcept {
  auto const grid = grid_of(plan);
  auto const blocks = static_cast<unsigned>(plan.states * plan.dims.value_heads * grid.blocks_per_head);
  rebase_states_kernel<<<blocks, rebase_states_grid::threads, 0, ex.stream.handle()>>>(plan, states, grid);
  return outcome_of(cudaGetLastError());
}

}  // namespace hypic::inline v0
