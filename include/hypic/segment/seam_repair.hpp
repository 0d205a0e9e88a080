// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hypic/algebra/rotation.hpp"
#include "hypic/algebra/summary.hpp"
#include "hypic/core/exec.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/rows.hpp"

namespace hypic::inline v0 {

/// One span of a chain, as a linear layer walks it: its forwarded rows, then the cached head rows that were not
/// forwarded, then its body. A fresh span has forwarded rows alone.
struct seam_span {
  std::int64_t first_row = 0;  ///< its forwarded rows in the packed inputs: [first_row, first_row + rows)
  std::int64_t rows = 0;       ///< the seam of a cached span, all of a fresh one
  std::int32_t cached = -1;    ///< its entry in the records; -1: fresh
  std::int32_t head_rows = 0;  ///< cached head rows of that record; rows [rows, head_rows) are replayed
  bool has_body = false;       ///< whether the record's segment is longer than its head
  friend constexpr bool operator==(seam_span const&, seam_span const&) = default;
};

/// A range of spans of one request: [first_span, first_span + spans).
struct seam_chain {
  std::int64_t first_span = 0;
  std::int64_t spans = 0;
  std::int32_t initial_slot = -1;  ///< the state before its first span; -1: zero
  std::int32_t final_slot = -1;    ///< where the state after its last span goes; -1: nowhere
  friend constexpr bool operator==(seam_chain const&, seam_chain const&) = default;
};

/// A checked description of one layer's walk over a batch of chains. A value.
struct repair_plan {
  family_id family{};
  state_dims dims{};
  row_options options{};
  std::int64_t total_rows = 0;
  std::int64_t slots = 0;
  std::int64_t records = 0;
  std::vector<seam_span> spans;
  std::vector<seam_chain> chains;

  /// Scratch of `seam_repair` with that many threads.
  HYPIC_API std::int64_t workspace_bytes(int threads) const noexcept;
  friend bool operator==(repair_plan const&, repair_plan const&) = default;
};

/// Checks and makes a plan.
/// Errors: invalid_shape (a fresh span with a head or a body, a seam longer than the head), invalid_argument (options
///         that are not finite), out_of_range (rows, spans,
///         records or slots outside of theirs; the same final slot twice, or one chain's as another's initial one).
HYPIC_API result<repair_plan> plan_seam_repair(family_id family, state_dims const& dims, row_options const& options,
                                               std::int64_t total_rows, std::int64_t slots, std::int64_t records,
                                               std::vector<seam_span> spans, std::vector<seam_chain> chains);

/// The cached side of one span of one layer.
struct cached_span {
  const_rows_view head{};          ///< [head_rows, ...], canonical rotation
  const_summary_view body{};       ///< of the tokens after the head
  rotation const* turn = nullptr;  ///< R(start) for a layer whose q and k are rotary; null: none
};

/// Where a repair writes. `o` may be empty.
struct repair_outputs {
  tensor_view<float, 3> o{};         ///< [total_rows, value_heads, Dv]
  tensor_view<float, 4> states{};    ///< [slots, value_heads, Dk, Dv], any strides: read and written by slot
  std::span<std::uint32_t> flags{};  ///< a chain each, or empty: bits of value_flag of its forwarded rows, OR-ed
};

/// Walks every chain through one linear layer and gives the outputs of its forwarded rows.
///   state <- initial; for each span: forwarded rows run from the state; cached head rows that were not forwarded are
///   replayed, turned by R(start); then state <- T state + R(start) S0.
/// Shapes:     inputs as of `segment_prefill`; `records` [plan.records], of which those of spans that no chain walks may be
///             empty.
/// Resuming:   a later range of spans goes on from the slot that an earlier one left.
/// Guarantees: no allocation; the same bits for any number of threads and in any batch.
/// Errors:     invalid_shape (also where `o` starts where an input does, or two chains write one row of it),
///             invalid_argument, unsupported (a turn under a diagonal or dense operator),
///             workspace_too_small.
/// Source:     HYPIC, arXiv:2607.01299, on seam re-forwarding; here the seam replaces the cached head.
template <state_family F>
HYPIC_API status seam_repair(repair_plan const& plan, query_rows_view const& in, std::span<cached_span const> records,
                             repair_outputs const& out, host_exec const& ex);

}  // namespace hypic::inline v0
