// SPDX-License-Identifier: Apache-2.0
#include "tables/tables.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "engine/error.hpp"
#include "tables/prompts.hpp"

namespace hypic_tables {
namespace {

namespace fs = std::filesystem;

std::string shape_text(prompt_shape const& shape) {
  return std::to_string(shape.segments) + " x " + std::to_string(shape.segment_tokens);
}

/// The index of `name`, which goes to the end where it is new.
std::size_t place_of(std::vector<std::string>& names, std::string const& name) {
  auto const at = std::find(names.begin(), names.end(), name);
  auto const place = static_cast<std::size_t>(at - names.begin());
  if (at == names.end()) names.push_back(name);
  return place;
}

/// Puts `text` where a row's labels and a column meet; both are made where they are new.
void put(report_table& table, std::vector<std::string> const& labels, std::string const& column,
         std::string const& text) {
  auto const at = place_of(table.columns, column);
  auto row = std::find_if(table.rows.begin(), table.rows.end(),
                          [&](auto const& known) { return std::equal(labels.begin(), labels.end(), known.begin()); });
  if (row == table.rows.end()) row = table.rows.insert(row, labels);
  for (auto& known : table.rows) known.resize(table.columns.size());  // a cell a column
  (*row)[at] = text;
}

std::string checked(finding const& found) { return scientific(found.error) + (found.met() ? "" : " !"); }

/// The worst layer of each check of each model: [check][model].
std::map<std::string, std::map<std::string, finding>> worst_layers(std::vector<exactness_row> const& rows,
                                                                   std::vector<std::string>& checks,
                                                                   std::vector<std::string>& models) {
  std::map<std::string, std::map<std::string, finding>> worst;
  for (auto const& row : rows) {
    auto const model = short_name(row.checkpoint) + (row.slowed ? ", slowed" : "");
    place_of(checks, row.found.check);
    place_of(models, model);
    auto const [at, added] = worst[row.found.check].try_emplace(model, row.found);
    if (!added && !(row.found.error <= at->second.error)) at->second = row.found;
  }
  return worst;
}

report_table kl_table(std::vector<end_to_end_row> const& rows) {
  report_table table{
      "End to end: KL",
      "Mean KL(full recompute || mode) over the query's positions, in nats: five shuffled prompts a row, "
      "one from each text.",
      2,
      {"checkpoint", "documents"},
      {}};
  for (auto const& row : rows) {
    put(table, {short_name(row.checkpoint), shape_text(row.shape)}, row.mode, scientific(row.kl));
  }
  return table;
}

report_table detail_table(std::string const& checkpoint) {
  return {"End to end: " + checkpoint,
          "Against full recompute: agreement of the best token; negative log likelihood of the query above full's, in "
          "nats a token; error of the final states; tokens forwarded on a warm hit, and time to the first token, warm "
          "and cold, as multiples of full's.",
          2,
          {"documents", "mode", "KL", "top-1", "NLL", "state error", "forwarded", "warm", "cold"},
          {}};
}

}  // namespace

input_data load_data(fs::path const& folder) {
  input_data data{{}, load_texts(folder)};
  for (auto const& entry : fs::directory_iterator(folder)) {
    auto const& path = entry.path();
    if (path.extension() != ".safetensors" || path.stem().extension() == ".golden") continue;
    data.checkpoints.push_back({path.stem().string(), hypic_engine::load_checkpoint(path)});
  }
  if (data.checkpoints.empty())
    hypic_engine::fail(hypic_engine::in_quotes(folder.string()),
                       ": found no checkpoint; expected files named *.safetensors");
  std::sort(data.checkpoints.begin(), data.checkpoints.end(), [](auto const& left, auto const& right) {
    return std::pair(left.loaded.config.family, left.name) < std::pair(right.loaded.config.family, right.name);
  });
  return data;
}

std::vector<exactness_row> make_exactness(input_data const& data, table_options const& options,
                                          hypic_engine::progress const& tell) {
  std::vector const texts(data.texts.begin(), data.texts.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                       options.exactness_texts, data.texts.size())));
  std::vector<exactness_row> rows;
  auto const add = [&](std::string const& name, hypic_engine::checkpoint const& loaded, bool slowed) {
    for (auto const& found : run_exactness(loaded, texts, options.seed, options.threads))
      rows.push_back({name, slowed, found});
  };
  std::int64_t done = 0;
  for (auto const& [name, loaded] : data.checkpoints) {
    add(name, loaded, false);
    if (auto const slowed = slowed_copy(loaded)) add(name, *slowed, true);
    if (tell) tell(++done, static_cast<std::int64_t>(data.checkpoints.size()));
  }
  return rows;
}

std::vector<composition_row> make_composition(input_data const& data, table_options const& options,
                                              hypic_engine::progress const& tell) {
  auto const& lengths = options.chain_lengths;
  auto const segments = *std::max_element(lengths.begin(), lengths.end());
  constexpr std::array families{hypic::family_id::retnet, hypic::family_id::gla, hypic::family_id::gated_deltanet,
                                hypic::family_id::kda};
  auto const steps = static_cast<std::int64_t>(families.size() + data.checkpoints.size());
  std::int64_t done = 0;
  std::vector<composition_row> rows;
  auto const add = [&](hypic::family_id family, std::string const& inputs, std::vector<segment_chain> const& chains) {
    auto const made = run_composition(name_of(family), inputs, chains, lengths, options.threads);
    rows.insert(rows.end(), made.begin(), made.end());
    if (tell) tell(++done, steps);
  };
  for (auto const family : families)
    add(family, "random", {random_chain(family, segments, options.chain_tokens, options.seed)});
  auto const longest = std::max_element(data.texts.begin(), data.texts.end(), [](text const& left, text const& right) {
    return left.tokens.size() < right.tokens.size();
  });
  for (auto const& [name, loaded] : data.checkpoints) {
    hypic_engine::model const with(loaded);
    auto const chains =
        activation_chains(with, *longest, segments, options.chain_tokens, options.seed, options.threads);
    if (!chains.empty()) add(chains.front().shape.family, "activations", chains);
  }
  return rows;
}

std::vector<end_to_end_row> make_end_to_end(input_data const& data, table_options const& options,
                                            hypic_engine::progress const& tell) {
  auto const prompts = static_cast<std::int64_t>(options.shapes.size() * data.texts.size());
  auto const all = prompts * static_cast<std::int64_t>(data.checkpoints.size());
  std::int64_t before = 0;
  std::vector<end_to_end_row> rows;
  for (auto const& [name, loaded] : data.checkpoints) {
    auto const made = run_end_to_end(name, loaded, data.texts, options.shapes, options.query_tokens, options.seed,
                                     options.threads, [&](std::int64_t done, std::int64_t) {
                                       if (tell) tell(before + done, all);
                                     });
    rows.insert(rows.end(), made.begin(), made.end());
    before += prompts;
  }
  return rows;
}

evidence make_evidence(input_data const& data, table_options const& options, document_use use,
                       hypic_engine::progress const& tell) {
  auto const texts = std::min(options.evidence_texts, data.texts.size());
  auto const [segments, tokens] = options.evidence_shape;
  std::vector<hypic_engine::document_prompt> prompts;
  for (std::size_t i = 0; i < texts; ++i)
    prompts.push_back(make_document_prompt(data.texts[i], segments, tokens, options.query_tokens, options.seed + i));
  evidence all;
  std::int64_t done = 0;
  for (auto const& [name, loaded] : data.checkpoints) {
    auto const one = run_evidence(name, loaded, prompts, use, options.threads, [&](std::int64_t, std::int64_t) {
      if (tell) tell(++done, static_cast<std::int64_t>(data.checkpoints.size() * prompts.size()));
    });
    all.drift.insert(all.drift.end(), one.drift.begin(), one.drift.end());
    all.seam.insert(all.seam.end(), one.seam.begin(), one.seam.end());
    all.distances.insert(all.distances.end(), one.distances.begin(), one.distances.end());
  }
  return all;
}

bool all_met(std::vector<exactness_row> const& rows) {
  return std::all_of(rows.begin(), rows.end(), [](exactness_row const& row) { return row.found.met(); });
}

report_table shown_exactness(std::vector<exactness_row> const& rows) {
  std::vector<std::string> checks;
  std::vector<std::string> models;
  auto const worst = worst_layers(rows, checks, models);
  report_table table{
      "Exactness",
      "Largest errors over layers, prompts and seams of 0, 4 and 8 tokens; \"slowed\" models forget more "
      "slowly. A ! marks what misses its bound.",
      1,
      {"check", "bound"},
      {}};
  table.columns.insert(table.columns.end(), models.begin(), models.end());
  table.columns.push_back("result");
  for (auto const& check : checks) {
    std::vector<std::string> row{check, ""};
    bool met = true;
    for (auto const& model : models) {
      auto const at = worst.at(check).find(model);
      row.push_back(at == worst.at(check).end() ? "" : checked(at->second));
      if (at == worst.at(check).end()) continue;
      row[1] = scientific(at->second.bound);
      met = met && at->second.met();
    }
    row.push_back(met ? "pass" : "FAIL");
    table.rows.push_back(std::move(row));
  }
  return table;
}

report_table shown_composition(std::vector<composition_row> const& rows) {
  report_table table{"Composition",
                     "The state after a chain of segments, against the sequential fp64 run over their rows: relative "
                     "Frobenius, mean over layers. By number of segments.",
                     3,
                     {"inputs", "family", "mode"},
                     {}};
  for (auto const& row : rows) {
    put(table, {row.inputs, row.family, row.mode}, std::to_string(row.segments), scientific(row.error));
  }
  return table;
}

std::vector<report_table> shown_end_to_end(std::vector<end_to_end_row> const& rows) {
  std::vector<report_table> tables{kl_table(rows)};
  std::string checkpoint;
  for (auto const& row : rows) {
    if (row.checkpoint != checkpoint) tables.push_back(detail_table(checkpoint = row.checkpoint));
    tables.back().rows.push_back({shape_text(row.shape), row.mode, scientific(row.kl), decimal(row.top1, 3),
                                  decimal(row.nll - row.nll_full, 3), scientific(row.state_error),
                                  decimal(row.tokens_forwarded, 0), decimal(row.ttft_of_full, 2),
                                  decimal(row.cold_of_full, 2)});
  }
  return tables;
}

std::vector<report_table> shown_evidence(evidence const& of) {
  report_table drift{"Drift",
                     "How far each part of each layer is from full recompute's, relative. state: of a linear layer "
                     "after the last document; no_attention: with attention giving zeros in both runs; keys, values, "
                     "attention: with linear layers that start from full recompute's states.",
                     2,
                     {"checkpoint", "part"},
                     {}};
  for (auto const& row : of.drift)
    put(drift, {short_name(row.checkpoint), row.part}, std::to_string(row.layer), scientific(row.error));
  report_table seam{"Seam", "Mean KL(full || w rows of seam) in nats.", 1, {"checkpoint"}, {}};
  for (auto const& row : of.seam)
    put(seam, {short_name(row.checkpoint)}, "w = " + std::to_string(row.seam_rows), scientific(row.kl));
  report_table distance{"Distance",
                        "How far hidden rows that are computed alone are from full recompute's, relative, by distance "
                        "from their document's first token.",
                        2,
                        {"checkpoint", "layer"},
                        {}};
  for (auto const& row : of.distances)
    put(distance, {short_name(row.checkpoint), std::to_string(row.layer)}, std::to_string(row.distance),
        scientific(row.hidden_error));
  return {std::move(drift), std::move(seam), std::move(distance)};
}

report_table shown_families(std::vector<family_row> const& rows) {
  report_table table{
      "Families",
      "A layer of four heads, D 64, a segment of 512 tokens: bytes of its record, FLOP of taking a state "
      "through it, time of its prefill over retnet's.",
      2,
      {"family", "form", "bytes", "FLOP", "time"},
      {}};
  for (auto const& row : rows)
    table.rows.push_back({row.family, row.form, std::to_string(row.bytes), std::to_string(row.flop),
                          std::isnan(row.time_over_retnet) ? "-" : decimal(row.time_over_retnet, 2)});
  return table;
}

json_array listed(std::vector<exactness_row> const& rows) {
  json_array array{"exactness", {}};
  for (auto const& row : rows) {
    auto const layer = row.found.layer < 0 ? json_value(nullptr) : json_value(std::int64_t{row.found.layer});
    array.rows.push_back({{"checkpoint", row.checkpoint},
                          {"slowed", row.slowed},
                          {"check", row.found.check},
                          {"layer", layer},
                          {"error", row.found.error},
                          {"bound", row.found.bound}});
  }
  return array;
}

json_array listed(std::vector<composition_row> const& rows) {
  json_array array{"composition", {}};
  for (auto const& row : rows)
    array.rows.push_back({{"family", row.family},
                          {"inputs", row.inputs},
                          {"segments", row.segments},
                          {"mode", row.mode},
                          {"error", row.error}});
  return array;
}

json_array listed(std::vector<end_to_end_row> const& rows) {
  json_array array{"end_to_end", {}};
  for (auto const& row : rows)
    array.rows.push_back({{"checkpoint", row.checkpoint},
                          {"segments", row.shape.segments},
                          {"segment_tokens", row.shape.segment_tokens},
                          {"mode", row.mode},
                          {"kl", row.kl},
                          {"top1", row.top1},
                          {"nll_full", row.nll_full},
                          {"nll", row.nll},
                          {"state_error", row.state_error},
                          {"tokens_forwarded", row.tokens_forwarded},
                          {"ttft_ms", row.ttft_ms},
                          {"cold_ms", row.cold_ms},
                          {"ttft_of_full", row.ttft_of_full},
                          {"cold_of_full", row.cold_of_full}});
  return array;
}

json_array listed(std::vector<drift_row> const& rows) {
  json_array array{"drift", {}};
  for (auto const& row : rows)
    array.rows.push_back(
        {{"checkpoint", row.checkpoint}, {"layer", std::int64_t{row.layer}}, {"part", row.part}, {"error", row.error}});
  return array;
}

json_array listed(std::vector<seam_row> const& rows, std::vector<distance_row> const& distances) {
  json_array array{"seam", {}};
  for (auto const& row : rows)
    array.rows.push_back({{"checkpoint", row.checkpoint}, {"w", std::int64_t{row.seam_rows}}, {"kl", row.kl}});
  for (auto const& row : distances)
    array.rows.push_back({{"checkpoint", row.checkpoint},
                          {"layer", std::int64_t{row.layer}},
                          {"distance", row.distance},
                          {"hidden_error", row.hidden_error},
                          {"attention_error", row.attention_error}});
  return array;
}

json_array listed(std::vector<family_row> const& rows) {
  json_array array{"families", {}};
  for (auto const& row : rows)
    array.rows.push_back({{"family", row.family},
                          {"form", row.form},
                          {"bytes", row.bytes},
                          {"flop", row.flop},
                          {"time_over_retnet", row.time_over_retnet}});
  return array;
}

}  // namespace hypic_tables
