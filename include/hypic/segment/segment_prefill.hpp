// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hypic/algebra/summary.hpp"
#include "hypic/core/exec.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/rows.hpp"

namespace hypic::inline v0 {

/// One sequence of a prefill: rows [first_row, first_row + rows) of the packed inputs, which are the tokens
/// [position, position + rows) of its segment.
struct prefill_sequence {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t position = 0;       ///< tokens of this segment that earlier calls have consumed
  std::int32_t initial_slot = -1;  ///< the state it starts from; -1: zero
  std::int32_t final_slot = -1;    ///< where its state goes; -1: nowhere
  friend constexpr bool operator==(prefill_sequence const&, prefill_sequence const&) = default;
};

/// Sequences of a packed batch, each from position 0 and from zero.
/// Shapes: cu_seqlens [sequences + 1], from 0, monotone, ending at `total_rows`. Errors: invalid_shape, out_of_range.
HYPIC_API result<std::vector<prefill_sequence>> sequences_from_cu_seqlens(std::span<std::int32_t const> cu_seqlens,
                                                                          std::int64_t total_rows);

/// A checked description of one layer's prefill of a ragged batch. A value: it makes no call and holds no memory of
/// the host's.
struct prefill_plan {
  family_id family{};
  state_dims dims{};
  row_options options{};
  std::int32_t head_rows = 0;   ///< W: the rows of a segment that its body leaves out
  std::int64_t total_rows = 0;  ///< rows of the packed inputs
  std::int64_t slots = 0;       ///< states in the host's pool
  std::vector<prefill_sequence> sequences;

  /// Scratch of `segment_prefill` with that many threads.
  HYPIC_API std::int64_t workspace_bytes(int threads) const noexcept;
  friend bool operator==(prefill_plan const&, prefill_plan const&) = default;
};

/// Checks and makes a plan.
/// Errors: invalid_shape (dims, rows outside of the inputs, W < 0), invalid_argument (options that are not finite),
///         out_of_range (a slot below -1 or not in the pool, the same final slot twice, or one sequence's as another's
///         initial one).
HYPIC_API result<prefill_plan> plan_segment_prefill(family_id family, state_dims const& dims,
                                                    row_options const& options, std::int32_t head_rows,
                                                    std::int64_t total_rows, std::int64_t slots,
                                                    std::vector<prefill_sequence> sequences);

/// Where a prefill writes. Every member may be empty, and so may the entries of `bodies` and `heads`: not wanted.
struct prefill_outputs {
  tensor_view<float, 3> o{};       ///< [total_rows, value_heads, Dv]
  tensor_view<float, 4> states{};  ///< [slots, value_heads, Dk, Dv], any strides: read and written by slot
  std::span<summary_view const>
      bodies{};                        ///< a sequence each: (T, S0) of its tokens from W on, (I, 0) if it ends before
  std::span<rows_view const> heads{};  ///< a sequence each: row t receives its segment's token t, for t < W
  std::span<std::uint32_t> flags{};    ///< a sequence each: bits of value_flag, OR-ed into what is there
};

/// Runs segments through one linear layer: S_t = A_t S_(t-1) + B_t, o_t = q_scale S_t^T q_t.
/// Shapes:     q [total_rows, key_heads, Dk], which may be empty where `o` is; rows as of `basic_rows_view`; outputs as
///             above.
/// Resuming:   a sequence with position > 0 goes on from the state in `initial_slot` and from the body in its entry of
///             `bodies`, which it updates; at position 0 the body is (over)written. Bits equal an unbroken run's where
///             the break lies at W plus a multiple of `prefill_chunk(family)`.
/// Method:     chunks of tokens in matrix form, counted from W; gates are summed in fp64 inside of a chunk; the products
///             and sums of one output element run in one order, so that appended or later rows leave earlier outputs
///             bitwise alone.
/// Values:     a log gate of -inf is a reset. Bad values set bits in `flags`; nothing out of bounds is touched.
/// Guarantees: no allocation; the same bits for any number of threads and in any batch.
/// Accuracy:   against the fp64 sequential recurrence, for every Dk and Dv, b |k|^2 <= 2 and a run of at most 65,536
///             tokens, even where nothing decays and no rounding is ever forgotten (Frobenius norms, a head each):
///               T   1e-5 |T| + 1e-7 sqrt(Dk)
///               S0  1e-5 of the largest norm that it has had on the way; 1e-6 of it over at most 600 tokens, which
///                   is 1e-5 relative unless S0 has cancelled to under a tenth of that norm
///               o   1e-5 relative, over all of a sequence
///             States that go on from a slot are as S0 is. A call that goes on reads T and states in fp32, whose
///             rounding adds up to 6e-8 of their norms.
/// Errors:     invalid_shape (also where `o` starts where an input does, or two sequences write one row of it),
///             invalid_argument (family or gate space differ from the plan's), workspace_too_small.
template <state_family F>
HYPIC_API status segment_prefill(prefill_plan const& plan, query_rows_view const& in, prefill_outputs const& out,
                                 host_exec const& ex);

/// Tokens between the points, counted from W, at which the host back end rounds states to fp32 and a run may break
/// without a change of bits. A multiple of its matrix chunks. A constant: it is part of what makes the bits.
HYPIC_API std::int64_t prefill_chunk(family_id family) noexcept;

}  // namespace hypic::inline v0
