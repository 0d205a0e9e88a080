// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/algebra/rotation.hpp"
#include "hypic/core/dtype.hpp"
#include "hypic/cuda/fold_chains.hpp"
#include "hypic/segment/rows.hpp"
#include "hypic/segment/seam_repair.hpp"

/// Seam repair on a device: every chain of every request of one linear layer in one kernel. Tables and all that they
/// point to lie in device memory and are read when the work runs.
namespace hypic::inline v0 {

/// Strides of rows in elements: token and head of each operand. Last dimensions have unit stride, beta's two any.
struct layer_row_strides {
  std::int64_t q[2] = {};
  std::int64_t k[2] = {};
  std::int64_t v[2] = {};
  std::int64_t gates[2] = {};
  std::int64_t beta[2] = {};
  friend constexpr bool operator==(layer_row_strides const&, layer_row_strides const&) = default;
};

/// Rows of one layer: bases of q, k, v in the plan's `rows` type and of gates and beta in fp32, as of `query_rows_view`.
/// beta is null for families without it, q where no outputs are wanted.
struct device_rows {
  void const* q = nullptr;
  void const* k = nullptr;
  void const* v = nullptr;
  float const* gates = nullptr;
  float const* beta = nullptr;
};

/// The cached side of one span: its head rows, in canonical rotation, its body, and the turn to its start.
/// Shapes: turn [2, rotary pairs], cosines then sines; null: none. Only scalar operators turn.
struct device_cached_span {
  device_rows head{};
  chain_run body{};
  float const* turn = nullptr;
};

/// A checked description of one layer's walks. A value; it needs no scratch.
struct device_repair_plan {
  family_id family{};
  state_dims dims{};
  row_options options{};
  dtype rows = dtype::f32;      ///< of q, k, v and o: f32, f16 or bf16
  layer_row_strides inputs{};   ///< of the forwarded rows
  layer_row_strides head{};     ///< of records
  std::int64_t output[2] = {};  ///< strides of o: token, head
  std::int64_t operator_head_stride = 0;
  std::int64_t end_state_head_stride = 0;
  state_strides states{};
  std::int64_t slot_stride = 0;
  std::int64_t slots = 0;
  std::int64_t total_rows = 0;    ///< of the packed inputs
  std::int64_t chains = 0;        ///< of a call
  std::int32_t rotary_pairs = 0;  ///< of turns; 0: no span turns
  rotary_pairing pairing = rotary_pairing::rotate_half;
  friend constexpr bool operator==(device_repair_plan const&, device_repair_plan const&) = default;
};

/// A plan for dense operands: [rows, heads, dim] inputs, records and outputs, [slots, value_heads, Dk, Dv] states. Its
/// members may be changed and are checked by each call.
HYPIC_API device_repair_plan plan_device_repair(family_id family, state_dims const& dims, row_options const& options,
                                                dtype rows, std::int64_t total_rows, std::int64_t slots,
                                                std::int64_t chains);

/// ok, or which member is at fault. Errors: invalid_shape, invalid_argument, unsupported (Dk above 256; turns under a
/// diagonal or dense operator).
HYPIC_API status validate(device_repair_plan const& plan) noexcept;

/// What one call reads and writes, in device memory; `seam_span` and `seam_chain` as the host back end has them.
struct repair_tables {
  device_rows inputs{};
  void* o = nullptr;                            ///< [total_rows, value_heads, Dv] in the rows' type; null: not wanted
  float* states = nullptr;                      ///< the pool; null where no chain names a slot
  seam_span const* spans = nullptr;             ///< all that the chains name
  seam_chain const* chains = nullptr;           ///< [plan.chains]
  device_cached_span const* records = nullptr;  ///< all that the spans name; null where none does
  std::uint32_t* flags = nullptr;  ///< [plan.chains] or null: bits of value_flag of forwarded rows, OR-ed in
};

/// Walks every chain through one linear layer and gives the outputs of its forwarded rows, as `seam_repair` of the host
/// back end does: forwarded rows from the state, then the cached head rows that were not forwarded, then the body.
/// Resuming:   a later range of spans goes on from the slot that an earlier one left.
/// Cost:       2 Dk^2 Dv FLOP a dense body and head, 6 Dk Dv a row; operators are read once for 32 values each.
/// Accuracy:   fp32 arithmetic, token by token: 1e-5 relative to fp64 for fp32 rows over some hundred rows; 16-bit rows
///             are widened exactly, and outputs rounded once.
/// Guarantees: one kernel; no allocation, no synchronisation, capturable; a chain has the same bits in any batch. A slot
///             outside of the pool and a span outside of the rows are not touched.
/// Errors:     those of `validate`; invalid_argument (null tables); those of every call.
/// Source:     HYPIC, arXiv:2607.01299, on seam re-forwarding; here the seam replaces the cached head.
HYPIC_API status seam_repair(device_repair_plan const& plan, repair_tables const& tables, device_exec const& ex);

}  // namespace hypic::inline v0
