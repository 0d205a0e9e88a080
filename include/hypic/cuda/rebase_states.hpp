// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/algebra/rotation.hpp"
#include "hypic/core/export.hpp"
#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"
#include "hypic/cuda/fold_chains.hpp"
#include "hypic/family/family.hpp"

/// End states of linear layers whose q and k are rotary, moved with their tokens: S -> R S on the key axis; see `rebase`
/// of algebra/rotation.hpp. One call serves all layers of one shape and all spans of all requests.
namespace hypic::inline v0 {

/// One state of one layer. All pointers are the device's.
/// Shapes: in, out [value_heads, Dk, Dv] by the plan's strides; angles [2, rotary_pairs], cosines and sines of the turn
///         (see `write_angles`).
struct rebase_state {
  float const* in = nullptr;      ///< null: the entry is skipped
  float* out = nullptr;           ///< may be `in` where both have the same strides
  float const* angles = nullptr;  ///< null: the state is copied as it is
};

/// A checked description of one call. A value; it needs no scratch.
struct rebase_states_plan {
  state_dims dims{};
  std::int32_t rotary_pairs = 0;
  rotary_pairing pairing = rotary_pairing::rotate_half;
  state_strides in{};
  state_strides out{};
  std::int64_t states = 0;  ///< entries of the table
  friend constexpr bool operator==(rebase_states_plan const&, rebase_states_plan const&) = default;
};

/// A plan for dense states [value_heads, Dk, Dv]; its members may be changed and are checked by each call.
HYPIC_API rebase_states_plan plan_rebase_states(state_dims const& dims, std::int32_t rotary_pairs,
                                                rotary_pairing pairing, std::int64_t states) noexcept;

/// ok, or which member is at fault. Errors: invalid_shape, invalid_argument, unsupported (beyond the size of a grid).
HYPIC_API status validate(rebase_states_plan const& plan) noexcept;

/// Turns the state of every entry. What is written may overlap neither another entry's input nor its output.
/// Shapes:     states [plan.states], in device memory, read when the work runs.
/// Cost:       reads and writes each state once. Fastest where the axis of stride 1 is the same in `in` and `out`.
/// Accuracy:   1e-6 relative to the fp64 turn, to position 1e6. What does not turn keeps its bits.
/// Guarantees: one kernel; no allocation, no synchronisation, capturable; the same bits in any batch, in any layout, in
///             place or not, and on either path.
/// Errors:     those of `validate`; invalid_argument (null table); unsupported (a path that the device has not); those of
///             every call.
HYPIC_API status rebase_states(rebase_states_plan const& plan, rebase_state const* states, device_exec const& ex);

}  // namespace hypic::inline v0
