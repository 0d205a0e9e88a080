// SPDX-License-Identifier: Apache-2.0
#include "tables/end_to_end.hpp"

#include "engine/modes.hpp"
#include "tables/prompts.hpp"

namespace hypic_tables {
namespace {

constexpr std::int32_t seam_rows = 8;

void add(end_to_end_row& sum, hypic_engine::mode_outcome const& outcome) {
  sum.kl += outcome.kl;
  sum.top1 += outcome.top1;
  sum.nll_full += outcome.nll_full;
  sum.nll += outcome.nll;
  sum.state_error += outcome.state_error;
  sum.tokens_forwarded += static_cast<double>(outcome.tokens_forwarded);
  sum.ttft_ms += outcome.ttft_ms;
  sum.cold_ms += outcome.cold_ms;
}

void divide(end_to_end_row& sum, double prompts) {
  for (auto* const metric : {&sum.kl, &sum.top1, &sum.nll_full, &sum.nll, &sum.state_error, &sum.tokens_forwarded,
                             &sum.ttft_ms, &sum.cold_ms})
    *metric /= prompts;
}

/// A seed of its own for each text and shape.
std::uint64_t seed_of(std::uint64_t seed, std::size_t text_index, prompt_shape const& shape) {
  random_numbers mixed(seed);
  for (auto const part : {static_cast<std::int64_t>(text_index), shape.segments, shape.segment_tokens})
    mixed = random_numbers(mixed.next() ^ static_cast<std::uint64_t>(part));
  return mixed.next();
}

}  // namespace

std::vector<end_to_end_row> run_end_to_end(std::string const& name, hypic_engine::checkpoint const& loaded,
                                           std::vector<text> const& texts, std::span<prompt_shape const> shapes,
                                           std::int64_t query_tokens, std::uint64_t seed, int threads,
                                           hypic_engine::progress const& tell) {
  hypic_engine::mode_comparison const comparison(loaded, seam_rows, threads);
  auto const prompts = static_cast<std::int64_t>(shapes.size() * texts.size());
  std::int64_t done = 0;
  std::vector<end_to_end_row> rows;
  for (auto const& shape : shapes) {
    auto const first = rows.size();
    for (auto const mode : hypic_engine::all_modes)
      rows.push_back({.checkpoint = name, .shape = shape, .mode = std::string(hypic_engine::name_of(mode))});
    for (std::size_t i = 0; i < texts.size(); ++i) {
      auto const outcomes = comparison.run(
          make_document_prompt(texts[i], shape.segments, shape.segment_tokens, query_tokens, seed_of(seed, i, shape)));
      for (std::size_t m = 0; m < outcomes.size(); ++m) add(rows[first + m], outcomes[m]);
      if (tell) tell(++done, prompts);
    }
    for (auto row = first; row < rows.size(); ++row) {
      divide(rows[row], static_cast<double>(texts.size()));
      rows[row].ttft_of_full = rows[row].ttft_ms / rows[first].ttft_ms;
      rows[row].cold_of_full = rows[row].cold_ms / rows[first].cold_ms;
    }
  }
  return rows;
}

}  // namespace hypic_tables
