// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/records.hpp"
#include "tables/texts.hpp"

/// How well real prompts are served, against full recompute.
namespace hypic_tables {

/// A prompt of documents of equal length.
struct prompt_shape {
  std::int64_t segments = 0;
  std::int64_t segment_tokens = 0;
};

/// One row of the table: means over prompts of the same shape, one a text. Metrics as of hypic_engine::mode_outcome.
struct end_to_end_row {
  std::string checkpoint;
  prompt_shape shape;
  std::string mode;
  double kl = 0.0;
  double top1 = 0.0;
  double nll_full = 0.0;
  double nll = 0.0;
  double state_error = 0.0;
  double tokens_forwarded = 0.0;
  double ttft_ms = 0.0;
  double cold_ms = 0.0;
  double ttft_of_full = 0.0;  ///< ttft_ms as a multiple of full recompute's
  double cold_of_full = 0.0;
};

/// Every mode at every shape. Prompts depend on the seed, the text and the shape alone. `tell` is told of prompts.
std::vector<end_to_end_row> run_end_to_end(std::string const& name, hypic_engine::checkpoint const& loaded,
                                           std::vector<text> const& texts, std::span<prompt_shape const> shapes,
                                           std::int64_t query_tokens, std::uint64_t seed, int threads,
                                           hypic_engine::progress const& tell = {});

}  // namespace hypic_tables
