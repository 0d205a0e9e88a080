// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hypic/request/spans.hpp"
#include "hypic/store/model_layout.hpp"

namespace hypic::inline v0 {

/// What is done with a span.
enum class span_decision : std::uint8_t {
  reuse,    ///< its record serves all but its seam
  forward,  ///< every token is forwarded
};

/// Why. Append-only.
enum class span_reason : std::uint8_t {
  empty,             ///< forward: it has no tokens
  fresh,             ///< forward: it is not cached
  within_seam,       ///< forward: it is no longer than its seam
  costs_more,        ///< forward: to reuse it costs at least as much
  nothing_precedes,  ///< reuse, whole: it stands first, where its record was made
  seam_forwarded,    ///< reuse: all but its seam
};

/// A phrase for people, such as "it is no longer than its seam". Never null.
HYPIC_API char const* to_string(span_reason reason) noexcept;

/// What reusing a span costs beside the forwarding of its seam, in forwarded tokens: fetching its record, composing, and
/// turning each key. A span is reused where that and its seam are below its length. Zero: whenever it saves a token.
struct reuse_costs {
  double span = 0.0;   ///< of each
  double token = 0.0;  ///< of each of its tokens
};

/// One span of a planned request.
struct planned_span {
  span_kind kind = span_kind::fresh;
  span_decision decision = span_decision::forward;
  span_reason reason = span_reason::empty;
  double saved = 0.0;      ///< by reusing it, in forwarded tokens; of a cached span that is forwarded, at most 0
  record_key key{};        ///< of a reused span
  std::int64_t start = 0;  ///< its first token's position in the prompt
  std::int64_t tokens = 0;
  std::int64_t first_row = 0;  ///< its forwarded rows among the plan's: [first_row, first_row + rows)
  std::int64_t rows = 0;
  std::int64_t turn = 0;  ///< positions by which cached keys and states are turned: start
  friend constexpr bool operator==(planned_span const&, planned_span const&) = default;
};

/// What serving one prompt takes: which tokens are forwarded, at which positions, and what is reused. A value.
struct request_plan {
  std::vector<planned_span> spans;
  std::vector<std::int32_t> row_tokens;     ///< the forwarded tokens, in prompt order
  std::vector<std::int64_t> row_positions;  ///< their true positions
  std::int64_t prompt_tokens = 0;           ///< where the last span ends

  std::int64_t rows() const noexcept { return static_cast<std::int64_t>(row_tokens.size()); }
  friend bool operator==(request_plan const&, request_plan const&) = default;
};

struct request_options {
  std::int32_t seam_rows = 8;  ///< w: forwarded tokens at the start of a reused span; none where nothing precedes
  std::int64_t generated_tokens = 0;  ///< that decoding may add to the prompt
  std::int64_t preceding_tokens = 0;  ///< that the host's slot and caches hold already: the first span starts there
  reuse_costs costs{};
};

/// Plans a request. Spans may be empty; a prompt may have no forwarded row at all (state and keys, no logits).
/// Errors: those of validate(model_layout); invalid_argument (no tokens at all, w outside of 0 .. layout.head_rows, a
///         negative option, costs that are not finite), capacity_exceeded (prompt plus generated tokens beyond
///         layout.max_positions, or beyond 64 bits), out_of_memory.
HYPIC_API result<request_plan> plan_request(model_layout const& layout, std::span<prompt_span const> spans,
                                            request_options const& options);

/// The plan of spans [first, first + count) alone, for a host that assembles in pieces: rows are renumbered, positions
/// stay true. Errors: out_of_range, out_of_memory.
HYPIC_API result<request_plan> slice(request_plan const& plan, std::int64_t first, std::int64_t count);

}  // namespace hypic::inline v0
