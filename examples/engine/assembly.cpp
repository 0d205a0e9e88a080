// SPDX-License-Identifier: Apache-2.0
#include "engine/assembly.hpp"

#include <algorithm>

#include "engine/status.hpp"

namespace hypic_engine {

request_memory::request_memory(hypic::model_layout const& layout, std::int64_t slots, std::int64_t positions)
    : layout_(layout), slots_(slots), positions_(positions) {
  auto const zeros = [](std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); };
  for (auto const& layer : layout_.layers) {
    if (auto const* linear = std::get_if<hypic::linear_layer>(&layer)) {
      layers_.push_back({zeros(slots * linear->dims.value_heads * linear->dims.state_elements()),
                         zeros(slots * linear->tail_rows * linear->tail_channels)});
    } else {
      auto const& attention = std::get<hypic::attention_layer>(layer);
      layers_.push_back({zeros(slots * positions * attention.kv_heads * attention.key_dim),
                         zeros(slots * positions * attention.kv_heads * attention.value_dim)});
    }
  }
}

hypic::tensor_view<float, 4> request_memory::states(std::int32_t layer) noexcept {
  auto const i = static_cast<std::size_t>(layer);
  auto const& dims = std::get<hypic::linear_layer>(layout_.layers[i]).dims;
  return hypic::dense_view(layers_[i].first.data(), slots_, dims.value_heads, dims.key_dim, dims.value_dim);
}

hypic::tensor_view<float, 3> request_memory::tails(std::int32_t layer) noexcept {
  auto const i = static_cast<std::size_t>(layer);
  auto const& linear = std::get<hypic::linear_layer>(layout_.layers[i]);
  return hypic::dense_view(layers_[i].second.data(), slots_, linear.tail_rows, linear.tail_channels);
}

hypic::request_cache request_memory::cache(std::int32_t layer, std::int64_t slot) noexcept {
  auto const i = static_cast<std::size_t>(layer);
  auto const& attention = std::get<hypic::attention_layer>(layout_.layers[i]);
  auto const keys =
      hypic::dense_view(layers_[i].first.data(), slots_, positions_, attention.kv_heads, attention.key_dim);
  auto const values =
      hypic::dense_view(layers_[i].second.data(), slots_, positions_, attention.kv_heads, attention.value_dim);
  return {keys[slot], values[slot]};
}

void request_memory::copy_slot(std::int64_t from, std::int64_t to) {
  auto const copy = [&](std::vector<float>& pool) {
    auto const one = static_cast<std::int64_t>(pool.size()) / slots_;
    std::copy_n(pool.begin() + from * one, one, pool.begin() + to * one);
  };
  for (auto& layer : layers_) {
    copy(layer.first);
    copy(layer.second);
  }
}

assembly_mixer::assembly_mixer(hypic::assembler const& with, request_memory& memory, std::vector<std::int64_t> slots,
                               int threads, hypic::observer* watch)
    : assembler_(with),
      memory_(memory),
      slots_(std::move(slots)),
      threads_(threads),
      watch_(watch),
      workspace_(static_cast<std::size_t>(with.workspace_bytes(threads))) {}

void assembly_mixer::tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw,
                           hypic::tensor_view<float, 3> tails) {
  check(assembler_.tails(layer, raw, memory_.tails(layer), tails, exec()), "the tails of a batch");
}

void assembly_mixer::linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) {
  check(assembler_.linear(layer, in, {.o = o, .states = memory_.states(layer)}, exec()),
        "the assembly of a linear layer");
}

void assembly_mixer::attention(std::int32_t layer, hypic::tensor_view<float const, 3> q,
                               hypic::tensor_view<float const, 3> k, hypic::tensor_view<float const, 3> v,
                               hypic::tensor_view<float, 3> o) {
  std::vector<hypic::request_cache> caches;
  for (auto const slot : slots_) caches.push_back(memory_.cache(layer, slot));
  check(assembler_.attention(layer, q, k, v, caches, o, exec()), "the assembly of an attention layer");
}

forward_rows rows_of(hypic::batch_plan const& batch, std::vector<std::int32_t>& tokens,
                     std::vector<std::int64_t>& positions) {
  for (auto const& request : batch.requests) {
    tokens.insert(tokens.end(), request.plan.row_tokens.begin(), request.plan.row_tokens.end());
    positions.insert(positions.end(), request.plan.row_positions.begin(), request.plan.row_positions.end());
  }
  std::vector<row_block> runs;
  for (auto const& run : batch.runs) runs.push_back({run.first_row, run.rows});
  return {tokens, positions, std::move(runs)};
}

}  // namespace hypic_engine
