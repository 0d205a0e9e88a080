// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.hpp"

namespace hypic_engine {

/// What became of one span of a served prompt.
struct span_account {
  hypic::span_kind kind{};
  hypic::span_decision decision{};
  hypic::span_reason reason{};
  double saved = 0.0;  ///< in forwarded tokens, as the plan values it
  std::int64_t start = 0;
  std::int64_t tokens = 0;
  std::optional<fetch_report> lookup{};  ///< of a reused span: what the store said
  std::int64_t tokens_forwarded = 0;     ///< in the prompt: all of a fresh span, the seam of a reused one
  std::int64_t tokens_prefilled = 0;     ///< alone, because of a miss; the first span of a record stands for it
  std::int64_t tokens_skipped = 0;       ///< not computed at all
};

/// One account a span of one request of a batch.
std::vector<span_account> account_for(hypic::batch_plan const& batch, std::int64_t request,
                                      fetched_records const& records);

/// "hit", "miss: absent", or "-" where no record was asked for.
std::string lookup_text(span_account const& account);
/// Why the span was reused or forwarded, in a few words.
std::string decision_text(span_account const& account);

/// A prompt that was served alone, in slot 0 of its own memory.
struct served_prompt {
  served_request result;
  request_memory memory;
  std::vector<span_account> spans;

  std::int64_t tokens_prefilled() const;
  std::int64_t tokens_skipped() const;
};

/// Serves one prompt, with room for `generated_tokens` after it. Errors: engine_error, as engine::plan and engine::fetch.
served_prompt serve(engine& with, std::vector<hypic::prompt_span> const& spans, std::int64_t generated_tokens = 0);

}  // namespace hypic_engine
