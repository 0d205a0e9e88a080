// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model.hpp"
#include "hypic/request/assembler.hpp"

namespace hypic_engine {

/// The engine's own memory for running requests, by slot: states and tails of linear layers, keys and values of
/// attention layers. Zero at first.
class request_memory {
 public:
  /// Every slot has room for `positions` tokens.
  request_memory(hypic::model_layout const& layout, std::int64_t slots, std::int64_t positions);

  std::int64_t slots() const noexcept { return slots_; }
  hypic::tensor_view<float, 4> states(std::int32_t layer) noexcept;  ///< [slots, heads, Dk, Dv]
  hypic::tensor_view<float, 3> tails(std::int32_t layer) noexcept;   ///< [slots, K-1, channels]
  hypic::request_cache cache(std::int32_t layer, std::int64_t slot) noexcept;

  /// Makes slot `to` what slot `from` is.
  void copy_slot(std::int64_t from, std::int64_t to);

 private:
  struct layer_memory {
    std::vector<float> first;   // states, or keys
    std::vector<float> second;  // tails, or values
  };

  hypic::model_layout layout_;
  std::int64_t slots_ = 0;
  std::int64_t positions_ = 0;
  std::vector<layer_memory> layers_;
};

/// The second pass's mixer: an assembler over the engine's memory. Request r keeps its keys in slot `slots[r]`.
class assembly_mixer final : public token_mixer {
 public:
  assembly_mixer(hypic::assembler const& with, request_memory& memory, std::vector<std::int64_t> slots, int threads,
                 hypic::observer* watch = nullptr);

  void tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw, hypic::tensor_view<float, 3> tails) override;
  void linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) override;
  void attention(std::int32_t layer, hypic::tensor_view<float const, 3> q, hypic::tensor_view<float const, 3> k,
                 hypic::tensor_view<float const, 3> v, hypic::tensor_view<float, 3> o) override;

 private:
  hypic::host_exec exec() noexcept { return {.workspace = workspace_, .threads = threads_, .watch = watch_}; }

  hypic::assembler const& assembler_;
  request_memory& memory_;
  std::vector<std::int64_t> slots_;
  int threads_;
  hypic::observer* watch_;
  std::vector<std::byte> workspace_;
};

/// The rows that a batch forwards, for model::forward. They refer to `tokens` and `positions`.
forward_rows rows_of(hypic::batch_plan const& batch, std::vector<std::int32_t>& tokens,
                     std::vector<std::int64_t>& positions);

}  // namespace hypic_engine
