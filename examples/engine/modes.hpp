// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/engine.hpp"

namespace hypic_engine {

/// Ways to serve one prompt of documents and a query.
enum class mode {
  full,                  ///< everything recomputed: the reference
  prefix,                ///< snapshots at span ends of the same documents in their unshuffled order
  addition,              ///< end states added up, no operator: the naive shortcut, shown to be wrong
  operator_only,         ///< states composed through operators; keys and states stay at segment-local positions
  operator_rotate,       ///< and turned to their true positions
  operator_rotate_seam,  ///< and the first tokens of each segment forwarded again
};
inline constexpr std::array all_modes{mode::full,          mode::prefix,          mode::addition,
                                      mode::operator_only, mode::operator_rotate, mode::operator_rotate_seam};

/// "full", "prefix", "addition", "operator", "operator_rotate", "operator_rotate_seam".
std::string_view name_of(mode which) noexcept;

/// A prompt: documents, each a cached span, then a fresh query.
struct document_prompt {
  std::vector<std::vector<std::int32_t>> documents;  ///< in prompt order
  std::vector<std::size_t> unshuffled;               ///< their indices in the order in which a prefix cache saw them
  std::vector<std::int32_t> query;
};

/// How one mode served a prompt, against full recompute of it. Means over query positions are NaN where there are none.
struct mode_outcome {
  mode which{};
  double kl = 0.0;           ///< mean over query positions of KL(full || mode), nats
  double top1 = 0.0;         ///< share of query positions whose largest logit is the same
  double nll_full = 0.0;     ///< of each next query token, under full, nats
  double nll = 0.0;          ///< and under the mode
  double state_error = 0.0;  ///< after the query: mean over linear layers of |S - S_full|_F / |S_full|_F
  std::int64_t tokens_forwarded = 0;
  double ttft_ms = 0.0;  ///< of a warm hit
  double cold_ms = 0.0;  ///< with empty caches: computing the records, then serving
  buffer logits;         ///< [query, vocab]
};

/// Serves prompts in every mode.
class mode_comparison {
 public:
  /// `seam_rows` is that of operator_rotate_seam.
  mode_comparison(checkpoint const& loaded, std::int32_t seam_rows, int threads, progress tell = {});

  /// One outcome a mode, in the order of all_modes. Errors: engine_error (as engine::plan).
  std::vector<mode_outcome> run(document_prompt const& prompt) const;

 private:
  model model_;     // its records keep the rows that a seam may replace
  model headless_;  // its records sum up whole segments: what addition adds
  std::int32_t seam_rows_;
  int threads_;
  progress tell_;
};

}  // namespace hypic_engine
