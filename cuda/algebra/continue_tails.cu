// SPDX-License-Identifier: Apache-2.0
#include "cuda/algebra/continue_tails_kernel.hpp"
#include "cuda/core/launch.cuh"

namespace hypic::inline v0 {
namespace {

constexpr int lanes = static_cast<int>(tail_channels_of_block);
constexpr int strands = 8;    // threads that share a channel
constexpr int in_flight = 4;  // elements that a thread reads before it writes the first

/// One channel of one chain. Element is what is copied: an unsigned integer of the elements' size.
template <class Element>
class tail_walk {
 public:
  __device__ tail_walk(tail_plan const& plan, tail_tables const& tables, tail_chain const& through,
                       std::int64_t channel)
      : plan_(plan), tables_(tables), chain_(through), channel_(channel) {}

  /// The tail before each span, every strand some of its elements. May read the initial slot; writes no slot.
  __device__ void write_tails(int strand) const {
    if (tables_.tails == nullptr) return;
    auto* const tails = static_cast<Element*>(tables_.tails) + channel_;
    copy(strand, strands, chain_.spans * plan_.tail_rows, [&](std::int64_t at) {
      auto const span = chain_.first_span + at / plan_.tail_rows;
      return element{at / plan_.tail_rows, at % plan_.tail_rows,
                     tails + span * plan_.tails_span + at % plan_.tail_rows * plan_.tails_row};
    });
  }
  /// The final tail, by one thread: a row's source is never an earlier row of the same slot, so the slot may be the
  /// initial one.
  __device__ void write_final() const {
    if (chain_.final_slot < 0) return;
    auto* const rows = slot_rows(chain_.final_slot);
    copy(0, 1, plan_.tail_rows, [&](std::int64_t row) {
      return element{chain_.spans, row, rows + row * plan_.pool_row};
    });
  }

 private:
  /// Row `row` of the tail before span `span` of the chain, and where it goes.
  struct element {
    std::int64_t span;
    std::int64_t row;
    Element* to;
  };

  __device__ Element* slot_rows(std::int64_t slot) const {
    return static_cast<Element*>(tables_.pool) + slot * plan_.pool_slot + channel_;
  }

  /// Where an element is read; null: it is 0.
  __device__ Element const* source(std::int64_t span, std::int64_t row) const {
    auto back = plan_.tail_rows - row;  // tokens from the end of the spans before
    while (span > 0) {
      auto const& before = tables_.spans[chain_.first_span + --span];
      if (back <= before.tokens) return source_within(before, before.tokens - back);
      back -= before.tokens;
    }
    if (chain_.initial_slot < 0) return nullptr;
    return slot_rows(chain_.initial_slot) + (plan_.tail_rows - back) * plan_.pool_row;
  }
  __device__ Element const* source_within(tail_span const& of, std::int64_t token) const {
    if (token < of.rows)
      return static_cast<Element const*>(tables_.raw) + (of.first_row + token) * plan_.raw_row + channel_;
    if (of.cached == nullptr) return nullptr;
    auto const row = token - (of.tokens - min(plan_.tail_rows, of.tokens));
    auto const width = plan_.channels / plan_.groups;
    return static_cast<Element const*>(of.cached) + row * plan_.cached_row + channel_ / width * plan_.cached_group +
           channel_ % width;
  }

  template <class ElementAt>
  __device__ void copy(std::int64_t first, std::int64_t step, std::int64_t count, ElementAt const& element_at) const {
    for (auto at = first; at < count; at += in_flight * step) {
      Element values[in_flight];
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        values[i] = 0;
        if (at + i * step >= count) continue;
        auto const of = element_at(at + i * step);
        if (auto const* const from = source(of.span, of.row); from != nullptr) values[i] = *from;
      }
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        if (at + i * step < count) *element_at(at + i * step).to = values[i];
      }
    }
  }

  tail_plan const& plan_;
  tail_tables const& tables_;
  tail_chain const& chain_;
  std::int64_t channel_;
};

template <class Element>
__global__ void __launch_bounds__(lanes* strands) tails_kernel(tail_plan plan, tail_tables tables, unsigned blocks) {
  tail_chain const through = tables.chains[blockIdx.x / blocks];
  auto const is_slot = [&](std::int64_t slot) { return slot >= -1 && slot < plan.slots; };
  if (!is_slot(through.initial_slot) || !is_slot(through.final_slot)) return;  // the same for all threads of a block

  auto const channel = blockIdx.x % blocks * tail_channels_of_block + threadIdx.x;
  tail_walk<Element> const walk(plan, tables, through, channel);
  if (channel < plan.channels) walk.write_tails(static_cast<int>(threadIdx.y));
  __syncthreads();  // the initial slot, which may be the final one, is not written before all tails are
  if (channel < plan.channels && threadIdx.y == 0) walk.write_final();
}

template <class Element>
cudaError_t launch(tail_plan const& plan, tail_tables const& tables, cudaStream_t stream) noexcept {
  auto const blocks = blocks_per_chain(plan);
  tails_kernel<Element><<<static_cast<unsigned>(plan.chains * blocks), dim3(lanes, strands), 0, stream>>>(
      plan, tables, static_cast<unsigned>(blocks));
  return cudaGetLastError();
}

}  // namespace

status launch_continue_tails(tail_plan const& plan, tail_tables const& tables, device_exec const& ex) noexcept {
  auto const stream = ex.stream.handle();
  return outcome_of(size_of(plan.type) == 4 ? launch<std::uint32_t>(plan, tables, stream)
                                            : launch<std::uint16_t>(plan, tables, stream));
}

}  // namespace hypic::inline v0
