// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hypic/core/exec.hpp"
#include "hypic/core/status.hpp"
#include "hypic/core/tensor_view.hpp"

namespace hypic::inline v0 {

/// One request of an attention call: its query rows in the packed input, and how many keys its memory holds.
struct attention_sequence {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  friend constexpr bool operator==(attention_sequence const&, attention_sequence const&) = default;
};

/// A checked description of one layer's attention over a batch of requests. A value.
struct attention_plan {
  std::int32_t query_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;    ///< 0: none; otherwise scores become soft_cap * tanh(score / soft_cap)
  std::int64_t window = 0;  ///< 0: none; otherwise a query sees its own key and the window - 1 before it
  std::int64_t total_rows = 0;
  std::vector<attention_sequence> sequences{};

  /// Scratch of `seam_attention` with that many threads.
  HYPIC_API std::int64_t workspace_bytes(int threads) const noexcept;
  friend bool operator==(attention_plan const&, attention_plan const&) = default;
};

/// Checks a plan's members. Errors: invalid_shape (also sequences that share a row), invalid_argument (scale, soft_cap not
/// finite; window < 0).
HYPIC_API status validate(attention_plan const& plan) noexcept;

/// A request's keys and values in prompt order: row j belongs to position j.
/// Shapes: keys [>= sequence.keys, kv_heads, key_dim], values [.., kv_heads, value_dim].
struct key_value_view {
  tensor_view<float const, 3> keys{};
  tensor_view<float const, 3> values{};
};

/// Causal attention of forwarded rows over their whole prompt.
/// Shapes:     q [total_rows, query_heads, key_dim]; positions [total_rows], true ones, 0 <= p < keys of the request;
///             sequences share no row; caches a sequence each; sink_logits [query_heads] or empty;
///             o [total_rows, query_heads, value_dim];
///             lse [total_rows, query_heads] or empty: natural log of the sum of exp over scores and sink.
///             Query head h reads kv head h / (query_heads / kv_heads).
/// Method:     products in fp32, summed in fp64; keys in blocks of one fixed size counted from position 0, one running
///             maximum. Keys that a row does not see do not touch it, whatever they hold.
/// Guarantees: no allocation; the same bits for any number of threads and in any batch. 2e-6 relative to fp64.
/// Errors:     invalid_shape (also where `o` starts where q, keys or values do), out_of_range (a position),
///             workspace_too_small.
HYPIC_API status seam_attention(attention_plan const& plan, tensor_view<float const, 3> q,
                                std::span<std::int64_t const> positions, std::span<key_value_view const> caches,
                                std::span<float const> sink_logits, tensor_view<float, 3> o, tensor_view<float, 2> lse,
                                host_exec const& ex);

/// Keys of one block of the host back end. A constant: it is part of what makes the bits.
HYPIC_API std::int64_t attention_block() noexcept;

}  // namespace hypic::inline v0
