// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/modes.hpp"
#include "engine/records.hpp"

/// Where the error that position-independent caching leaves comes from, layer by layer.
namespace hypic_tables {

/// How far one part of a layer is from full recompute's, relative (Frobenius), over prompts.
///   state_no_attention, state_no_attention_seam
///       a linear layer's state after the last document, attention layers giving zeros in both runs: what the linear
///       layers' own missing context does, without and with the seam
///   state, state_seam
///       the same in the whole model
///   keys, values, attention
///       of an attention layer, over all documents but the first, where each document's linear layers start from full
///       recompute's states and tails and attention sees the document alone: what attention's missing context does
struct drift_row {
  std::string checkpoint;
  std::int32_t layer = 0;
  std::string part;
  double error = 0.0;
};

/// KL(full || w rows of seam), mean over query positions and prompts, in nats; every w from one set of records.
struct seam_row {
  std::string checkpoint;
  std::int32_t seam_rows = 0;
  double kl = 0.0;
};

/// How far rows that are computed alone are from full recompute's, by distance from their document's first token:
/// relative norms, mean over all documents but the first and over prompts.
struct distance_row {
  std::string checkpoint;
  std::int32_t layer = 0;
  std::int64_t distance = 0;
  double hidden_error = 0.0;     ///< of the hidden row after the layer
  double attention_error = 0.0;  ///< of an attention layer's output; NaN for a linear layer
};

/// What a family's record costs: one layer of four heads, D 64, a segment of 512 tokens, W = 8, fp32.
struct family_row {
  std::string family;
  std::string form;             ///< "scalar", "diagonal", "dense", or "rows": the whole segment kept as rows
  std::int64_t bytes = 0;       ///< of the record of the layer, convolution aside
  std::int64_t flop = 0;        ///< of taking a state through it: T S + S0, or the recurrence over all rows
  double time_over_retnet = 0;  ///< of the segment's prefill with o, S0 and T, as a multiple of retnet's; NaN for rows
};

struct evidence {
  std::vector<drift_row> drift;
  std::vector<seam_row> seam;
  std::vector<distance_row> distances;
};

/// Whether documents are served from records, or forwarded like everything else: then nothing may drift.
enum class document_use { cached, fresh };

evidence run_evidence(std::string const& name, hypic_engine::checkpoint const& loaded,
                      std::vector<hypic_engine::document_prompt> const& prompts, document_use use, int threads,
                      hypic_engine::progress const& tell = {});

/// All four families, operators and rows. Times are the best of several runs on one thread.
std::vector<family_row> run_families(std::uint64_t seed);

}  // namespace hypic_tables
