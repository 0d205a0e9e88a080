// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "hypic/core/exec.hpp"
#include "hypic/core/status.hpp"
#include "hypic/core/tensor_view.hpp"

namespace hypic::inline v0 {

/// Which dimensions form a pair: (i, i + rotary_dim / 2), or (2 i, 2 i + 1).
enum class rotary_pairing : std::uint8_t { rotate_half, interleaved };

/// A model's rotary embedding: pair i of a key at position p turns by the angle p * frequencies[i].
/// The first 2 * frequencies.size() dimensions are rotary, the rest pass through. Frequencies are radians a token.
struct rotary_embedding {
  std::vector<double> frequencies;
  rotary_pairing pairing = rotary_pairing::rotate_half;

  std::int64_t rotary_dim() const noexcept { return 2 * static_cast<std::int64_t>(frequencies.size()); }
  friend bool operator==(rotary_embedding const&, rotary_embedding const&) = default;
};

/// base^(-2i / rotary_dim). `rotary_dim` is even and positive, not the head dimension of a partially rotary head.
/// Errors: invalid_argument. Source: RoFormer, arXiv:2104.09864.
HYPIC_API result<std::vector<double>> plain_frequencies(std::int64_t rotary_dim, double base);
/// Plain ones divided by `factor` (position interpolation, arXiv:2306.15595).
HYPIC_API result<std::vector<double>> linear_frequencies(std::int64_t rotary_dim, double base, double factor);
/// Plain ones of the base raised to base * factor^(rotary_dim / (rotary_dim - 2)) (NTK-aware, static).
HYPIC_API result<std::vector<double>> ntk_frequencies(std::int64_t rotary_dim, double base, double factor);
/// YaRN, arXiv:2309.00071: a ramp from interpolated to plain ones between the pairs that turn `beta_slow` and
/// `beta_fast` times over `original_positions`, linear in the pair's index between whole pairs, as the authors' code and
/// the engines after it have it. Its attention temperature is the host's to apply to q and k.
/// Errors: invalid_argument; also where not even the first pair turns `beta_slow` times.
HYPIC_API result<std::vector<double>> yarn_frequencies(std::int64_t rotary_dim, double base, double factor,
                                                       double original_positions, double beta_fast = 32.0,
                                                       double beta_slow = 1.0);

/// R(p): the turn by p positions. Cosines and sines are made in fp64 and rounded once.
/// Turns add: R(p) R(q) = R(p + q), so a key cached at position q turns to p + q.
struct rotation {
  std::vector<float> cosine;
  std::vector<float> sine;
  rotary_pairing pairing = rotary_pairing::rotate_half;

  bool identity() const noexcept { return cosine.empty(); }
};

/// The turn by `positions`, which may be negative; the identity (without vectors) for 0. Throws std::bad_alloc alone.
HYPIC_API rotation make_rotation(rotary_embedding const& rotary, std::int64_t positions);

/// Turns rows on their last axis: out[r, h] = R in[r, h]. `out` may be `in`.
/// Shapes: in, out [rows, heads, D], D >= rotary_dim. Errors: invalid_shape.
HYPIC_API status rotate_rows(rotation const& turn, tensor_view<float const, 3> in, tensor_view<float, 3> out,
                             host_exec const& ex);

/// Turns states on their key axis, S -> R S: what moving a run of tokens does to the end state of a layer whose q and k
/// are rotary. A scalar operator commutes with the turn and is left alone; diagonal and dense operators under a rotary
/// embedding are refused when the plan is made. `out` may be `in`.
/// Shapes: in, out [heads, Dk, Dv], any strides; Dk >= rotary_dim. Errors: invalid_shape.
HYPIC_API status rebase(rotation const& turn, tensor_view<float const, 3> in, tensor_view<float, 3> out,
                        host_exec const& ex);

}  // namespace hypic::inline v0
