// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/dtype.hpp"
#include "hypic/core/export.hpp"
#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"

/// Tails of causal convolutions along chains of spans, on a device: what `continue_tail` of algebra/tail.hpp does for one
/// span, for all spans of all requests of one layer, without a read-back.
namespace hypic::inline v0 {

/// One span: tokens that follow those of the span before it. All pointers are the device's.
/// Shapes: cached [min(K-1, tokens), groups, channels / groups] by the plan's strides, the span's last raw rows as
///         computed alone. The span's first `rows` rows were forwarded and are raw rows [first_row, first_row + rows).
struct tail_span {
  std::int64_t tokens = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;         ///< at most `tokens`
  void const* cached = nullptr;  ///< may be null where rows = tokens
};

/// The spans of one request, [first_span, first_span + spans) of the call's table, oldest first.
/// Slots are the pool's. -1: the chain starts from zeros, or its final tail is not wanted. A chain of which either slot is
/// neither -1 nor one of the pool's is skipped: nothing is written for it.
struct tail_chain {
  std::int64_t first_span = 0;
  std::int64_t spans = 0;
  std::int32_t initial_slot = -1;
  std::int32_t final_slot = -1;  ///< may be `initial_slot`, and is no slot of another chain
};

/// A checked description of one call. A value; it needs no scratch.
/// Strides are in elements, and channels are dense (within a group, of cached tails).
struct tail_plan {
  dtype type = dtype::f32;     ///< of rows and tails alike: they are copied
  std::int64_t tail_rows = 0;  ///< K-1
  std::int64_t channels = 0;
  std::int64_t groups = 1;  ///< of cached tails: what ranks share out
  std::int64_t raw_row = 0;
  std::int64_t cached_row = 0;
  std::int64_t cached_group = 0;
  std::int64_t tails_span = 0;
  std::int64_t tails_row = 0;
  std::int64_t pool_slot = 0;
  std::int64_t pool_row = 0;
  std::int64_t slots = 0;   ///< of the pool
  std::int64_t chains = 0;  ///< entries of the table
  friend constexpr bool operator==(tail_plan const&, tail_plan const&) = default;
};

/// A plan for one group and dense rows; its members may be changed and are checked by each call.
HYPIC_API tail_plan plan_tails(dtype type, std::int64_t tail_rows, std::int64_t channels, std::int64_t slots,
                               std::int64_t chains) noexcept;

/// ok, or which member is at fault. Errors: invalid_shape, invalid_argument, unsupported (beyond the size of a grid).
HYPIC_API status validate(tail_plan const& plan) noexcept;

/// What one call reads and writes, in device memory. The tables are read when the work runs.
struct tail_tables {
  tail_chain const* chains = nullptr;  ///< [plan.chains]
  tail_span const* spans = nullptr;    ///< all that the chains name
  void const* raw = nullptr;           ///< [rows, channels]
  void* pool = nullptr;                ///< [slots, K-1, channels]; null where the plan has no slots
  void* tails = nullptr;               ///< [spans, K-1, channels], the tail before each span; null: not wanted
};

/// Writes the tail before every span, and each chain's final tail into its slot. What is written may overlap nothing
/// that is read, but for a chain's own slot.
/// Cost:       each element is looked up from the end of the spans before it, so spans of a chain do not wait for each
///             other.
/// Accuracy:   exact: a copy.
/// Guarantees: one kernel, or none where there is no tail; no allocation, no synchronisation, capturable; the same bits
///             in any batch and on either path.
/// Errors:     those of `validate`; invalid_argument (a null table, a null pool of a plan with slots); unsupported (a path
///             that the device has not); those of every call.
HYPIC_API status continue_tails(tail_plan const& plan, tail_tables const& tables, device_exec const& ex);

}  // namespace hypic::inline v0
