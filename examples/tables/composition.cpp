// SPDX-License-Identifier: Apache-2.0
#include "tables/composition.hpp"

#include <cmath>
#include <numeric>

#include "engine/assembly.hpp"
#include "engine/engine.hpp"
#include "engine/status.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "tables/prompts.hpp"
#include "tables/reference.hpp"

namespace hypic_tables {
namespace {

using hypic_engine::check;
using hypic_engine::take;

std::vector<float> zeros(std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); }

hypic::operator_form form_of(hypic::family_id family) {
  return hypic::with_family(family, []<class F>(F) { return F::form; });
}

std::int64_t operator_size(hypic::linear_layer const& shape) {
  return shape.dims.value_heads * hypic::operator_elements(form_of(shape.family), shape.dims.key_dim);
}

std::int64_t state_size(hypic::linear_layer const& shape) {
  return shape.dims.value_heads * shape.dims.state_elements();
}

template <class T>
hypic::basic_summaries_view<T> summaries(hypic::linear_layer const& shape, std::int64_t runs, T* operators, T* states) {
  auto const& dims = shape.dims;
  return {hypic::dense_view(operators, runs, dims.value_heads,
                            hypic::operator_elements(form_of(shape.family), dims.key_dim)),
          hypic::dense_view(states, runs, dims.value_heads, dims.key_dim, dims.value_dim)};
}

/// The states after 1, 2, 3, ... of the segments, folded through their operators.
std::vector<float> folded_states(hypic::linear_layer const& shape, hypic::const_summaries_view runs, int threads) {
  auto const segments = runs.end_states.extent[0];
  auto operators = zeros(segments * operator_size(shape));
  auto states = zeros(segments * state_size(shape));
  auto const prefixes = summaries(shape, segments, operators.data(), states.data());
  check(hypic::with_family(
            shape.family,
            [&]<class F>(F) { return hypic::fold<F>(shape.dims, runs, {}, prefixes, {.threads = threads}); }),
        "the fold of a chain");
  return states;
}

/// The sums of the first 1, 2, 3, ... end states.
std::vector<float> added_states(hypic::const_summaries_view runs) {
  std::vector<float> states(runs.end_states.data, runs.end_states.data + runs.end_states.size());
  auto const one = runs.end_states.stride[0];
  for (auto i = one; i < runs.end_states.size(); ++i)
    states[static_cast<std::size_t>(i)] += states[static_cast<std::size_t>(i - one)];
  return states;
}

hypic_engine::buffer random_rows(std::int64_t rows, std::int64_t width, double least, double most,
                                 random_numbers& numbers) {
  hypic_engine::buffer made(rows, width);
  for (std::int64_t i = 0; i < rows * width; ++i)
    made.view().data[i] = static_cast<float>(numbers.uniform(least, most));
  return made;
}

void make_unit_length(hypic::tensor_view<float, 2> vectors) {
  for (std::int64_t row = 0; row < vectors.extent[0]; ++row) {
    auto* const first = &vectors(row, 0);
    auto const length = std::sqrt(std::inner_product(first, first + vectors.extent[1], first, 0.0));
    for (std::int64_t d = 0; d < vectors.extent[1]; ++d) first[d] = static_cast<float>(first[d] / length);
  }
}

}  // namespace

chain_summaries::chain_summaries(segment_chain const& of, int threads)
    : shape_(of.shape),
      segments_(of.segments),
      operators_(zeros(of.segments * operator_size(of.shape))),
      end_states_(zeros(of.segments * state_size(of.shape))) {
  std::vector<hypic::prefill_sequence> sequences;
  std::vector<hypic::summary_view> bodies;
  for (std::int64_t i = 0; i < of.segments; ++i) {
    sequences.push_back({.first_row = i * of.segment_tokens, .rows = of.segment_tokens});
    bodies.push_back(view()[i]);
  }
  auto const plan = take(hypic::plan_segment_prefill(shape_.family, shape_.dims, shape_.options, 0, of.rows.k.rows(), 0,
                                                     std::move(sequences)),
                         "the segments of a chain");
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes(threads)));
  check(hypic::with_family(shape_.family,
                           [&]<class F>(F) {
                             return hypic::segment_prefill<F>(plan, of.rows.view(of.shape), {.bodies = bodies},
                                                              {.workspace = workspace, .threads = threads});
                           }),
        "the prefill of a chain");
}

hypic::summaries_view chain_summaries::view() noexcept {
  return summaries(shape_, segments_, operators_.data(), end_states_.data());
}

hypic::const_summaries_view chain_summaries::view() const noexcept {
  return summaries(shape_, segments_, operators_.data(), end_states_.data());
}

std::vector<chain_error> check_chain(segment_chain const& of, chain_summaries const& summaries,
                                     std::span<std::int64_t const> lengths, int threads) {
  std::vector<row_reference> rows;
  auto unturned = of.shape;
  unturned.rotary.reset();  // the rows are at their positions already
  for (std::int64_t row = 0; row < of.segments * of.segment_tokens; ++row) rows.push_back({&of.rows, row, 0});
  std::vector<std::int64_t> tokens;
  for (auto const length : lengths) tokens.push_back(length * of.segment_tokens);
  auto const expected = sequential_states(unturned, rows, tokens, threads);

  auto const folded = folded_states(of.shape, summaries.view(), threads);
  auto const added = added_states(summaries.view());
  auto const one = static_cast<std::size_t>(state_size(of.shape));
  std::vector<chain_error> errors;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    auto const last = static_cast<std::size_t>(lengths[i] - 1) * one;
    errors.push_back({relative_error(std::span(added).subspan(last, one), expected[i]),
                      relative_error(std::span(folded).subspan(last, one), expected[i])});
  }
  return errors;
}

segment_chain random_chain(hypic::family_id family, std::int64_t segments, std::int64_t segment_tokens,
                           std::uint64_t seed) {
  random_numbers numbers(seed);
  segment_chain made{{.family = family, .dims = {2, 2, 64, 64}}, {}, segments, segment_tokens};
  auto const& dims = made.shape.dims;
  auto const rows = segments * segment_tokens;
  auto const width = std::int64_t{dims.key_heads} * dims.key_dim;
  made.rows.q = random_rows(rows, width, -1.0, 1.0, numbers);
  made.rows.k = random_rows(rows, width, -1.0, 1.0, numbers);
  make_unit_length(hypic::dense_view(made.rows.k.view().data, rows * dims.key_heads, dims.key_dim));
  made.rows.v = random_rows(rows, dims.value_heads * std::int64_t{dims.value_dim}, -1.0, 1.0, numbers);
  bool const per_channel = hypic::with_family(family, []<class F>(F) { return F::gate_per_channel; });
  bool const delta = hypic::with_family(family, []<class F>(F) { return F::delta_rule; });
  auto const slowest = -4.0 / static_cast<double>(rows);  // e^-2 of the first row is left on average
  made.rows.gates = random_rows(rows, per_channel ? width : dims.value_heads, slowest, 0.0, numbers);
  if (delta) made.rows.beta = random_rows(rows, dims.value_heads, 0.0, 0.1, numbers);
  return made;
}

std::vector<segment_chain> activation_chains(hypic_engine::model const& with, text const& from, std::int64_t segments,
                                             std::int64_t segment_tokens, std::uint64_t seed, int threads) {
  random_numbers numbers(seed);
  std::vector<std::int64_t> const length{segments * segment_tokens};
  std::vector<hypic::prompt_span> const spans{fresh_span_of(cut(from, length, numbers).front())};
  auto const batch =
      hypic_engine::batch_of({take(hypic::plan_request(with.layout(), spans, {}), "the rows of a chain")});
  auto const assembler = take(hypic::assembler::make(with.layout(), batch, {}, 1), "the batch");
  hypic_engine::request_memory memory(with.layout(), 1, length.front());
  hypic_engine::assembly_mixer inner(assembler, memory, {0}, threads);
  recording_mixer mixer(inner, with.layout());
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  with.forward(hypic_engine::rows_of(batch, tokens, positions), mixer, threads);

  auto rows = mixer.take();
  std::vector<segment_chain> chains;
  for (std::size_t l = 0; l < rows.size(); ++l)
    if (auto const* linear = std::get_if<hypic::linear_layer>(&with.layout().layers[l]))
      chains.push_back({*linear, std::move(rows[l]), segments, segment_tokens});
  return chains;
}

std::vector<composition_row> run_composition(std::string const& family, std::string const& inputs,
                                             std::vector<segment_chain> const& chains,
                                             std::span<std::int64_t const> lengths, int threads) {
  std::vector<chain_error> sums(lengths.size());
  for (auto const& chain : chains) {
    auto const errors = check_chain(chain, chain_summaries(chain, threads), lengths, threads);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      sums[i].addition += errors[i].addition;
      sums[i].operators += errors[i].operators;
    }
  }
  auto const layers = static_cast<double>(chains.size());
  std::vector<composition_row> rows;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    rows.push_back({family, inputs, lengths[i], "addition", sums[i].addition / layers});
    rows.push_back({family, inputs, lengths[i], "operator", sums[i].operators / layers});
  }
  return rows;
}

std::string name_of(hypic::family_id family) {
  switch (family) {
    case hypic::family_id::gla: return "gla";
    case hypic::family_id::gated_deltanet: return "gated_deltanet";
    case hypic::family_id::kda: return "kda";
    case hypic::family_id::retnet: break;
  }
  return "retnet";
}

}  // namespace hypic_tables
