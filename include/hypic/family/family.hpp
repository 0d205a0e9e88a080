// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "hypic/core/status.hpp"

namespace hypic::inline v0 {

/// What a run of tokens does to a state, S_out = T S_in + S0, in its cheapest faithful form.
enum class operator_form : std::uint8_t {
  scalar,    ///< T = exp(t) I: one natural-log decay a head
  diagonal,  ///< T = Diag(exp(t_1), ...): a natural-log decay a key channel
  dense,     ///< T itself, Dk x Dk, row-major
};

/// Shapes of a linear layer's heads. Value head h reads key head h / (value_heads / key_heads); there is one state,
/// Dk x Dv, a value head.
struct state_dims {
  std::int32_t key_heads = 0;
  std::int32_t value_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;

  constexpr std::int32_t key_head_of(std::int32_t value_head) const noexcept {
    return value_head / (value_heads / key_heads);
  }
  constexpr std::int64_t state_elements() const noexcept { return static_cast<std::int64_t>(key_dim) * value_dim; }
  friend constexpr bool operator==(state_dims const&, state_dims const&) = default;
};

/// ok, or which member of `dims` is at fault. Errors: invalid_shape (members below 1, a dimension above 2^20,
/// value_heads no multiple of key_heads).
HYPIC_API status validate(state_dims const& dims) noexcept;

/// Run-time name of a shipped family. Values are append-only: records carry them.
enum class family_id : std::uint8_t { retnet = 0, gla = 1, gated_deltanet = 2, kda = 3 };

/// A family as the algebra of segments sees it: an empty type that names the form of its operators. A host's own
/// families need no more to be composed, applied and folded.
template <class F>
concept operator_family = std::is_empty_v<F> && requires {
  { F::form } -> std::convertible_to<operator_form>;
};

/// A shipped state family: an empty type that says how one token maps the state, S_t = A_t S_(t-1) + B_t.
///   gate_per_channel  false: one decay a head and token; true: one a key channel
///   delta_rule        false: A = Diag(a), B = k v^T
///                     true:  A = (I - b k k^T) Diag(a), B = b k v^T
///   form              the form of the operator that these steps compose to
template <class F>
concept state_family = operator_family<F> && requires {
  { F::id } -> std::convertible_to<family_id>;
  { F::gate_per_channel } -> std::convertible_to<bool>;
  { F::delta_rule } -> std::convertible_to<bool>;
};

/// RetNet, Lightning attention, simple GLA, Mamba-2: S_t = a_t S_(t-1) + k v^T. Source: arXiv:2307.08621.
/// RetNet's constant decay is a gate view whose token stride is zero.
struct retnet {
  static constexpr family_id id = family_id::retnet;
  static constexpr operator_form form = operator_form::scalar;
  static constexpr bool gate_per_channel = false;
  static constexpr bool delta_rule = false;
};

/// Gated linear attention: S_t = Diag(a_t) S_(t-1) + k v^T. Source: arXiv:2312.06635.
struct gla {
  static constexpr family_id id = family_id::gla;
  static constexpr operator_form form = operator_form::diagonal;
  static constexpr bool gate_per_channel = true;
  static constexpr bool delta_rule = false;
};

/// Gated DeltaNet: S_t = a_t (I - b_t k k^T) S_(t-1) + b_t k v^T. Source: arXiv:2412.06464.
struct gated_deltanet {
  static constexpr family_id id = family_id::gated_deltanet;
  static constexpr operator_form form = operator_form::dense;
  static constexpr bool gate_per_channel = false;
  static constexpr bool delta_rule = true;
};

/// Kimi delta attention: S_t = (I - b_t k k^T) Diag(a_t) S_(t-1) + b_t k v^T. Source: arXiv:2510.26692.
struct kda {
  static constexpr family_id id = family_id::kda;
  static constexpr operator_form form = operator_form::dense;
  static constexpr bool gate_per_channel = true;
  static constexpr bool delta_rule = true;
};

/// Elements of one head's operator: 1, Dk or Dk * Dk.
constexpr std::int64_t operator_elements(operator_form form, std::int64_t key_dim) noexcept {
  switch (form) {
    case operator_form::scalar: return 1;
    case operator_form::diagonal: return key_dim;
    case operator_form::dense: return key_dim * key_dim;
  }
  return 0;
}

/// Elements of one head's gate in one row: 1 or Dk.
template <state_family F>
constexpr std::int64_t gate_elements(std::int64_t key_dim) noexcept {
  return F::gate_per_channel ? key_dim : 1;
}

/// The one switch from a run-time name to a type: calls `fn(F{})` with the named family.
/// `id` is one of the enumerators; all overloads of `fn` return the same type.
template <class Fn>
constexpr auto with_family(family_id id, Fn&& fn) {
  switch (id) {
    case family_id::gla: return fn(gla{});
    case family_id::gated_deltanet: return fn(gated_deltanet{});
    case family_id::kda: return fn(kda{});
    case family_id::retnet: break;
  }
  return fn(retnet{});
}

static_assert(state_family<retnet> && state_family<gla> && state_family<gated_deltanet> && state_family<kda>);
static_assert(!state_family<int>);

}  // namespace hypic::inline v0
