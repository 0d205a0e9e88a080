// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model.hpp"
#include "hypic/algebra/summary.hpp"
#include "tables/layer_rows.hpp"
#include "tables/texts.hpp"

/// What is left of a long run's state when it is put together from segments that were computed alone.
namespace hypic_tables {

/// One layer's rows, in segments of equal length.
struct segment_chain {
  hypic::linear_layer shape;
  layer_rows rows;
  std::int64_t segments = 0;
  std::int64_t segment_tokens = 0;
};

/// Summaries of a chain's segments, oldest first.
class chain_summaries {
 public:
  /// Computes each segment alone, from a zero state.
  chain_summaries(segment_chain const& of, int threads);

  hypic::summaries_view view() noexcept;
  hypic::const_summaries_view view() const noexcept;

 private:
  hypic::linear_layer shape_;
  std::int64_t segments_;
  std::vector<float> operators_;
  std::vector<float> end_states_;
};

/// How far two ways to compose the first segments of a chain are from the sequential fp64 run over their rows, relative
/// Frobenius, all heads in one norm.
struct chain_error {
  double addition = 0.0;   ///< end states added up
  double operators = 0.0;  ///< folded through the operators
};

/// One a length, ascending ones, of 1 .. of.segments.
std::vector<chain_error> check_chain(segment_chain const& of, chain_summaries const& summaries,
                                     std::span<std::int64_t const> lengths, int threads);

/// Random rows: unit keys, and decays slow enough that the first segment is still seen after all of them.
segment_chain random_chain(hypic::family_id family, std::int64_t segments, std::int64_t segment_tokens,
                           std::uint64_t seed);

/// The rows of each linear layer of a model that reads a text.
std::vector<segment_chain> activation_chains(hypic_engine::model const& with, text const& from, std::int64_t segments,
                                             std::int64_t segment_tokens, std::uint64_t seed, int threads);

/// One row of the table: the mean over layers.
struct composition_row {
  std::string family;
  std::string inputs;
  std::int64_t segments = 0;
  std::string mode;
  double error = 0.0;
};

/// Both modes at each length, averaged over the chains.
std::vector<composition_row> run_composition(std::string const& family, std::string const& inputs,
                                             std::vector<segment_chain> const& chains,
                                             std::span<std::int64_t const> lengths, int threads);

/// "retnet", "gla", "gated_deltanet", "kda".
std::string name_of(hypic::family_id family);

}  // namespace hypic_tables
