// SPDX-License-Identifier: Apache-2.0
#include "engine/serving_test.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

#include "engine/engine_test.hpp"
#include "engine/files.hpp"

namespace engine_test {

using hypic_engine::buffer;
using hypic_engine::model;
using hypic_engine::request_memory;

tokens text_tokens(std::string const& file, std::size_t first, std::size_t count) {
  auto const bytes = hypic_engine::read_file(std::string(HYPIC_ENGINE_DATA) + "/" + file);
  if (first + count > bytes.size()) throw std::runtime_error(file + " is too short");
  tokens text;
  for (std::size_t i = 0; i < count; ++i) text.push_back(std::to_integer<int>(bytes[first + i]));
  return text;
}

tokens joined(std::vector<tokens> const& pieces) {
  tokens all;
  for (auto const& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

named_model make_named(std::string name, hypic_engine::checkpoint weights, std::int32_t head_rows) {
  auto copy = weights;
  return {std::move(name), std::move(weights), model(std::move(copy), head_rows)};
}

hypic_engine::checkpoint shipped_checkpoint(std::string const& name) {
  return hypic_engine::load_checkpoint(std::string(HYPIC_ENGINE_DATA) + "/" + name + "-hybrid-3.8m.safetensors");
}

hypic_engine::checkpoint synthetic_checkpoint(synthetic::options const& what) {
  temporary_folder const folder;
  synthetic::write_file(synthetic::make(what), folder / "model.safetensors");
  return hypic_engine::load_checkpoint(folder.path());
}

bool same_bits(std::vector<float> const& left, std::vector<float> const& right) {
  return std::ranges::equal(std::as_bytes(std::span(left)), std::as_bytes(std::span(right)));
}

bool same_bits(buffer const& left, buffer const& right) {
  return left.rows() == right.rows() && left.width() == right.width() && same_bits(left.data(), right.data());
}

std::vector<float> state_of(model const& with, request_memory& memory, std::int64_t slot) {
  std::vector<float> all;
  for (std::size_t l = 0; l < with.layout().layers.size(); ++l) {
    auto const* linear = std::get_if<hypic::linear_layer>(&with.layout().layers[l]);
    if (linear == nullptr) continue;
    auto const layer = static_cast<std::int32_t>(l);
    auto const state = memory.states(layer)[slot];
    all.insert(all.end(), state.data, state.data + state.size());
    if (linear->tail_rows == 0) continue;
    auto const tail = memory.tails(layer)[slot];
    all.insert(all.end(), tail.data, tail.data + tail.size());
  }
  return all;
}

std::vector<float> keys_of(model const& with, request_memory& memory, std::int64_t positions, std::int64_t slot) {
  std::vector<float> all;
  for (std::size_t l = 0; l < with.layout().layers.size(); ++l) {
    if (!std::holds_alternative<hypic::attention_layer>(with.layout().layers[l])) continue;
    auto const cache = memory.cache(static_cast<std::int32_t>(l), slot);
    auto const keys = cache.keys.rows(0, positions);
    auto const values = cache.values.rows(0, positions);
    all.insert(all.end(), keys.data, keys.data + keys.size());
    all.insert(all.end(), values.data, values.data + values.size());
  }
  return all;
}

double difference(std::span<float const> left, std::span<float const> right) {
  if (left.size() != right.size()) return INFINITY;
  double most = 0.0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    auto const apart = std::abs(static_cast<double>(left[i]) - right[i]);
    if (!(apart <= most)) most = std::isnan(apart) ? INFINITY : apart;
  }
  return most;
}

std::span<float const> row_of(buffer const& logits, std::int64_t row) {
  return std::span(logits.data())
      .subspan(static_cast<std::size_t>(row * logits.width()), static_cast<std::size_t>(logits.width()));
}

double difference(buffer const& left, buffer const& right) {
  if (left.width() != right.width() || left.rows() > right.rows()) return INFINITY;
  return difference(left.data(), std::span(right.data()).last(left.data().size()));
}

double scaled_difference(buffer const& left, logit_rows const& right, std::size_t first) {
  if (first + static_cast<std::size_t>(left.rows()) > right.size()) return INFINITY;
  double most = 0.0;
  for (std::int64_t row = 0; row < left.rows(); ++row) {
    auto const& expected = right[first + static_cast<std::size_t>(row)];
    if (static_cast<std::size_t>(left.width()) != expected.size()) return INFINITY;
    for (std::int64_t v = 0; v < left.width(); ++v) {
      auto const value = expected[static_cast<std::size_t>(v)];
      auto const apart = std::abs(left.view()(row, v) - value) / std::max(1.0, std::abs(value));
      if (!(apart <= most)) most = std::isnan(apart) ? INFINITY : apart;
    }
  }
  return most;
}

double relative_difference(std::vector<float> const& left, std::vector<float> const& right) {
  if (left.size() != right.size()) return INFINITY;
  double apart = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    apart += std::pow(static_cast<double>(left[i]) - right[i], 2);
    norm += std::pow(static_cast<double>(right[i]), 2);
  }
  return apart == 0.0 ? 0.0 : std::sqrt(apart / norm);
}

}  // namespace engine_test
