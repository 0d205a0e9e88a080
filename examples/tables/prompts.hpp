// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/model.hpp"
#include "engine/modes.hpp"
#include "hypic/request/spans.hpp"
#include "tables/texts.hpp"

namespace hypic_tables {

/// Documents of one text and a query that follows one of them there, in an order that differs from the text's. The
/// prefix cache saw them in the text's order.
hypic_engine::document_prompt make_document_prompt(text const& from, std::int64_t documents,
                                                   std::int64_t document_tokens, std::int64_t query_tokens,
                                                   std::uint64_t seed);

/// A span that is cached under the model's fingerprint, and one that is not.
hypic::prompt_span cached_span_of(hypic_engine::model const& with, token_list tokens);
hypic::prompt_span fresh_span_of(token_list tokens);

/// Cached segments shorter than the convolution, than the head, and much longer; fresh spans between some of them; one
/// segment that stands twice; a query at the end. In some prompts (`number` odd) nothing fresh stands first.
std::vector<hypic::prompt_span> make_mixed_prompt(hypic_engine::model const& with, text const& from,
                                                  std::int64_t number, std::uint64_t seed);

}  // namespace hypic_tables
