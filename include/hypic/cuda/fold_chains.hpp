// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/dtype.hpp"
#include "hypic/core/export.hpp"
#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"
#include "hypic/family/family.hpp"

/// The algebra of segments on a device. One call walks any number of chains, of any layers and requests, through their
/// runs: S <- T S + S0 from an initial state, and T_chain <- T T_chain from I. So it composes, folds with all prefixes,
/// and applies; see algebra/summary.hpp for the laws.
///
/// Tables and everything that they point to lie in device memory and are read when the work runs: a captured call serves
/// other chains, lengths and pointers at each replay, up to the capacities of its plan.
namespace hypic::inline v0 {

/// One run of tokens of one layer.
/// Shapes: operators [value_heads, operator_elements(form)], end_states [value_heads, Dk, Dv], heads `*_head_stride`
///         elements apart, dense within a head.
/// Units:  scalar and diagonal operators are sums of natural-log decays, -inf for a reset. Where the plan stores
///         operators in f16, T = 2^exponent times what is stored, `operator_exponents` [value_heads].
struct chain_run {
  void const* operators = nullptr;
  std::int32_t const* operator_exponents = nullptr;
  float const* end_states = nullptr;
};

/// What every run up to this one composes to. Shapes: dense, as of `chain_run` with dense heads. Either may be null.
struct chain_prefix {
  float* operators = nullptr;
  float* end_states = nullptr;
};

/// One chain: runs [first_run, first_run + runs) of the call's table, oldest first. No runs give the initial state and
/// the neutral operator.
/// Shapes: initial and state [value_heads, Dk, Dv] by the plan's strides; operators [value_heads, elements], dense.
struct chain {
  std::int64_t first_run = 0;
  std::int64_t runs = 0;
  float const* initial = nullptr;  ///< null: zero. May be `state`
  float* state = nullptr;          ///< null: not wanted
  float* operators = nullptr;      ///< null: not wanted
};

/// Strides of a state in elements: [Dk, Dv] or [Dv, Dk], in slots of any layout.
struct state_strides {
  std::int64_t head = 0;
  std::int64_t key = 0;
  std::int64_t value = 1;
  friend constexpr bool operator==(state_strides const&, state_strides const&) = default;
};

/// A checked description of one call's chains. A value; it needs no scratch.
struct chain_plan {
  operator_form form{};
  state_dims dims{};
  dtype stored = dtype::f32;  ///< of dense operators: f32 or f16; decays are f32
  std::int64_t operator_head_stride = 0;
  std::int64_t end_state_head_stride = 0;
  state_strides states{};
  std::int64_t chains = 0;  ///< of a call
  bool composes = false;    ///< whether chains or prefixes ask for operators
  friend constexpr bool operator==(chain_plan const&, chain_plan const&) = default;
};

/// A plan for dense operators, end states and states; its members may be changed and are checked by each call.
HYPIC_API chain_plan plan_chains(operator_form form, state_dims const& dims, std::int64_t chains, bool composes);

/// ok, or which member is at fault. Errors: invalid_shape, invalid_argument, unsupported (Dk or Dv above 256).
HYPIC_API status validate(chain_plan const& plan) noexcept;

/// What one call reads and writes, in device memory.
struct chain_tables {
  chain const* chains = nullptr;           ///< [plan.chains]
  chain_run const* runs = nullptr;         ///< all that the chains name
  chain_prefix const* prefixes = nullptr;  ///< a run each, or null: none wanted
  std::uint32_t* flags = nullptr;          ///< [plan.chains] or null: bits of value_flag, OR-ed in
};

/// Walks every chain.
/// Cost:       dense: 2 Dk^2 Dv FLOP a run and head, and Dk^2 more columns where operators are composed. Every summary
///             is read once where only states are wanted.
/// Accuracy:   1e-5 relative to fp64 over 64 runs with |T| near 1.
/// Guarantees: one kernel; no allocation, no synchronisation, capturable; a chain has the same bits in any batch, for the
///             same path and GPU model.
/// Errors:     those of `validate`; invalid_argument (null tables); those of every call.
/// Flags:      non_finite where a result is not finite, which any NaN or infinity among the inputs makes it (but a
///             log decay of -inf); gate_out_of_range for a positive log decay.
/// Source:     HYPIC, arXiv:2607.01299, on cached transitions.
HYPIC_API status fold_chains(chain_plan const& plan, chain_tables const& tables, device_exec const& ex);

}  // namespace hypic::inline v0
