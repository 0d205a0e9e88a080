// SPDX-License-Identifier: Apache-2.0
#include "tables/reference.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/workers.hpp"
#include "oracle/recurrence_oracle.hpp"

namespace hypic_tables {
namespace {

oracle::recurrence law_of(hypic::family_id family) {
  switch (family) {
    case hypic::family_id::gla: return oracle::recurrence::diagonal_decay;
    case hypic::family_id::gated_deltanet: return oracle::recurrence::delta_rule;
    case hypic::family_id::kda: return oracle::recurrence::diagonal_delta_rule;
    case hypic::family_id::retnet: break;
  }
  return oracle::recurrence::scalar_decay;
}

/// The values of one head in one row.
std::vector<double> head_values(hypic_engine::buffer const& rows, std::int64_t row, std::int64_t head,
                                std::int64_t dim) {
  auto const* const first = &rows.view()(row, head * dim);
  return {first, first + dim};
}

std::vector<double> turned_key(std::optional<hypic::rotary_embedding> const& rotary, row_reference const& at,
                               std::int64_t head, std::int64_t dim) {
  auto key = head_values(at.from->k, at.row, head, dim);
  if (!rotary || at.turn == 0) return key;
  return oracle::turned(std::move(key), rotary->frequencies, rotary->pairing == hypic::rotary_pairing::interleaved,
                        static_cast<double>(at.turn));
}

/// One token of one head's recurrence.
void step(oracle::head& state, hypic::linear_layer const& shape, row_reference const& at, std::int32_t head) {
  auto const& dims = shape.dims;
  auto key = turned_key(shape.rotary, at, dims.key_head_of(head), dims.key_dim);
  if (shape.options.l2_normalize)
    key = oracle::normalized(std::move(key), static_cast<double>(shape.options.l2_epsilon));
  auto const value = head_values(at.from->v, at.row, head, dims.value_dim);
  auto const gates = head_values(at.from->gates, at.row, head, at.from->gates.width() / dims.value_heads);
  auto const beta = at.from->beta.width() > 0 ? static_cast<double>(at.from->beta.view()(at.row, head)) : 0.0;
  state.step(key.data(), value.data(), gates.data(), beta);
}

/// One head's output for one query over the first `keys` keys and values, [keys, dim] each.
void attend(hypic::attention_layer const& shape, std::vector<double> const& query, std::int64_t keys,
            std::vector<double> const& all_keys, std::vector<double> const& all_values, double* out) {
  std::vector<double> weights(static_cast<std::size_t>(keys));
  for (std::int64_t j = 0; j < keys; ++j) {
    auto const* const key = all_keys.data() + j * shape.key_dim;
    double score = 0.0;
    for (std::size_t d = 0; d < query.size(); ++d) score += query[d] * key[d];
    score *= static_cast<double>(shape.scale);
    auto const cap = static_cast<double>(shape.soft_cap);
    weights[static_cast<std::size_t>(j)] = cap > 0.0 ? cap * std::tanh(score / cap) : score;
  }
  auto const most = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  for (auto& weight : weights) sum += weight = std::exp(weight - most);
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t d = 0; d < shape.value_dim; ++d)
      out[d] +=
          weights[static_cast<std::size_t>(j)] / sum * all_values[static_cast<std::size_t>(j * shape.value_dim + d)];
}

void append(std::vector<double>& all, std::vector<double> const& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

std::vector<std::vector<double>> sequential_states(hypic::linear_layer const& shape,
                                                   std::span<row_reference const> rows,
                                                   std::span<std::int64_t const> after, int threads) {
  auto const& dims = shape.dims;
  auto const elements = dims.state_elements();
  std::vector<std::vector<double>> states(after.size(),
                                          std::vector<double>(static_cast<std::size_t>(dims.value_heads * elements)));
  hypic_engine::for_each_task(threads, dims.value_heads, [&](std::int64_t task) {
    auto const head = static_cast<std::int32_t>(task);
    oracle::head state(law_of(shape.family), static_cast<std::size_t>(dims.key_dim),
                       static_cast<std::size_t>(dims.value_dim));
    std::int64_t done = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      for (; done < after[i]; ++done) step(state, shape, rows[static_cast<std::size_t>(done)], head);
      std::copy(state.state().begin(), state.state().end(), states[i].begin() + head * elements);
    }
  });
  return states;
}

std::vector<double> causal_attention(hypic::attention_layer const& shape, layer_rows const& asking,
                                     std::span<std::int64_t const> positions, std::span<row_reference const> prompt,
                                     int threads) {
  auto const kv_heads = static_cast<std::size_t>(shape.kv_heads);
  std::vector<std::vector<double>> keys(kv_heads);
  std::vector<std::vector<double>> values(kv_heads);
  for (std::size_t head = 0; head < kv_heads; ++head) {
    for (auto const& at : prompt) {
      append(keys[head], turned_key(shape.rotary, at, static_cast<std::int64_t>(head), shape.key_dim));
      append(values[head], head_values(at.from->v, at.row, static_cast<std::int64_t>(head), shape.value_dim));
    }
  }
  auto const width = static_cast<std::int64_t>(shape.query_heads) * shape.value_dim;
  std::vector<double> out(positions.size() * static_cast<std::size_t>(width));
  hypic_engine::for_each_task(threads, static_cast<std::int64_t>(positions.size()), [&](std::int64_t row) {
    for (std::int32_t head = 0; head < shape.query_heads; ++head) {
      auto const kv_head = static_cast<std::size_t>(head / (shape.query_heads / shape.kv_heads));
      attend(shape, head_values(asking.q, row, head, shape.key_dim), positions[static_cast<std::size_t>(row)] + 1,
             keys[kv_head], values[kv_head], out.data() + row * width + head * shape.value_dim);
    }
  });
  return out;
}

double relative_error(std::span<float const> found, std::span<double const> expected) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (static_cast<double>(found[i]) - expected[i]) * (static_cast<double>(found[i]) - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

}  // namespace hypic_tables
