// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/model.hpp"
#include "engine/records.hpp"
#include "hypic/request/request_plan.hpp"
#include "tables/layer_rows.hpp"
#include "tables/texts.hpp"

/// Whether assembly computes what it says. Each check is a function of an explicit case. A test may spoil a case's plan
/// and records before a check runs; what they are compared with comes from the prompt's tokens and the model alone.
namespace hypic_tables {

/// The outcome of a check.
struct finding {
  std::string check;
  std::int32_t layer = -1;  ///< -1: not of one layer
  double error = 0.0;       ///< relative Frobenius, or the largest absolute difference of logits, or 1 for unequal bits
  double bound = 0.0;

  bool met() const noexcept { return error <= bound; }  // a NaN meets nothing
};

/// A segment, computed alone.
struct canonical_segment {
  hypic_engine::segment_record record;
  std::vector<layer_rows> rows;  ///< of each layer, as that computation consumed them
};
using canonical_segments = std::map<hypic::record_key, canonical_segment>;

/// A prompt and what serves it: the last span is the query.
struct exactness_case {
  hypic_engine::model const* with = nullptr;
  std::vector<hypic::prompt_span> spans;
  std::int32_t seam_rows = 0;
  hypic::request_plan plan;
  canonical_segments segments;
};

/// The segments of a prompt, each computed once, its mixer behind `front`.
canonical_segments compute_segments(hypic_engine::model const& with, std::vector<hypic::prompt_span> const& spans,
                                    int threads, mixer_front const& front = {});

/// A case as the library plans it.
exactness_case make_case(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans, std::int32_t seam_rows,
                         canonical_segments segments);

/// The same tokens without any cached span.
exactness_case make_fresh_case(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans);

/// Every segment is reused and all of it is its seam, but for one that nothing precedes: the record's path runs, and
/// nothing canonical may be left.
/// `with` keeps as many head rows as the longest segment has tokens.
exactness_case make_recorded_case(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans, int threads);

/// The first linear layer's state and convolution tail before the query are those of full recompute: for seams of at
/// least K-1 rows, K being the length of the convolution.
finding check_first_layer(exactness_case const& of, int threads);

/// Before the query, each linear layer's state is that of the sequential fp64 recurrence over the segments' canonical
/// rows, forwarded rows in the place of those that were forwarded; each attention layer's outputs are fp64 attention
/// over the keys and values chosen alike. Canonical keys that are rotary are turned to their true positions in fp64.
std::vector<finding> check_rows(exactness_case const& of, int threads);

/// The query's logits are those of full recompute. For cases in which all tokens are forwarded.
finding check_logits(std::string name, exactness_case const& of, int threads);

/// Three prompts over the same four segments, and the records that a warm store has of these.
struct reuse_case {
  hypic_engine::model const* with = nullptr;
  std::array<std::vector<hypic::prompt_span>, 3> prompts;
  std::vector<hypic::prompt_span> segments;
  std::vector<hypic_engine::segment_record> warm;  ///< one a segment
};
reuse_case make_reuse_case(hypic_engine::model const& with, text const& from, std::uint64_t seed, int threads);

/// The first prompt's logits, states and tails are the same bits whichever segments the store has, on 1 thread and on
/// 2, alone and in a batch with the other two; and the store hits exactly the segments that it has.
finding check_reuse(reuse_case const& of);

/// One row of the table.
struct exactness_row {
  std::string checkpoint;
  bool slowed = false;
  finding found;
};

/// A copy whose states forget more slowly, so that what was wrong early is still seen late; nothing for a model whose
/// decays are fixed.
std::optional<hypic_engine::checkpoint> slowed_copy(hypic_engine::checkpoint const& loaded);

/// All checks of one checkpoint: the largest error over prompts, one a text in `texts`, and over seams of 0, 4 and 8.
std::vector<finding> run_exactness(hypic_engine::checkpoint const& loaded, std::vector<text> const& texts,
                                   std::uint64_t seed, int threads);

}  // namespace hypic_tables
