// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/records.hpp"
#include "tables/composition.hpp"
#include "tables/end_to_end.hpp"
#include "tables/evidence.hpp"
#include "tables/exactness.hpp"
#include "tables/report.hpp"
#include "tables/texts.hpp"

/// The three tables: what they are made of, how they are run, how they are shown.
namespace hypic_tables {

struct named_checkpoint {
  std::string name;  ///< the file's, without its ending
  hypic_engine::checkpoint loaded;
};

/// What the tables run on.
struct input_data {
  std::vector<named_checkpoint> checkpoints;  ///< retnet, gla, gated_deltanet
  std::vector<text> texts;
};

/// The checkpoints (`*.safetensors`, but for `*.golden.safetensors`) and texts of a folder.
/// Errors: engine_error (none there; those of load_checkpoint and load_texts).
input_data load_data(std::filesystem::path const& folder);

struct table_options {
  std::uint64_t seed = 1;
  int threads = 1;
  std::size_t exactness_texts = 2;  ///< the first that many, a prompt each
  std::vector<std::int64_t> chain_lengths{1, 2, 4, 8, 16, 32};
  std::int64_t chain_tokens = 64;  ///< of each segment
  std::vector<prompt_shape> shapes{{2, 128}, {4, 128}, {8, 128}, {2, 256}, {4, 256}, {8, 256}, {2, 512}, {4, 512}};
  std::int64_t query_tokens = 128;
  prompt_shape evidence_shape{4, 128};
  std::size_t evidence_texts = 2;  ///< the first that many, a prompt each
};

/// `tell` is told of steps of the table.
std::vector<exactness_row> make_exactness(input_data const& data, table_options const& options,
                                          hypic_engine::progress const& tell = {});
std::vector<composition_row> make_composition(input_data const& data, table_options const& options,
                                              hypic_engine::progress const& tell = {});
std::vector<end_to_end_row> make_end_to_end(input_data const& data, table_options const& options,
                                            hypic_engine::progress const& tell = {});

/// Of all checkpoints together.
evidence make_evidence(input_data const& data, table_options const& options, document_use use,
                       hypic_engine::progress const& tell = {});

/// Whether every exactness row meets its bound.
bool all_met(std::vector<exactness_row> const& rows);

/// Tables for people. Times are multiples of full recompute's.
report_table shown_exactness(std::vector<exactness_row> const& rows);
report_table shown_composition(std::vector<composition_row> const& rows);
std::vector<report_table> shown_end_to_end(std::vector<end_to_end_row> const& rows);

std::vector<report_table> shown_evidence(evidence const& of);
report_table shown_families(std::vector<family_row> const& rows);

/// Arrays of flat objects.
json_array listed(std::vector<exactness_row> const& rows);
json_array listed(std::vector<composition_row> const& rows);
json_array listed(std::vector<end_to_end_row> const& rows);
json_array listed(std::vector<drift_row> const& rows);
/// `seam`: what a seam of w rows leaves, then what rows at a distance from their document's start are off by.
json_array listed(std::vector<seam_row> const& rows, std::vector<distance_row> const& distances);
json_array listed(std::vector<family_row> const& rows);

}  // namespace hypic_tables
