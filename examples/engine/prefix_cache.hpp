// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/engine.hpp"

namespace hypic_engine {

/// Prefix caching, to compare with: snapshots of state, tail, keys and values at span ends, each usable only by a prompt
/// that begins with the very same tokens.
class prefix_cache {
 public:
  /// `positions`: room of a snapshot in tokens.
  prefix_cache(engine const& with, std::int64_t positions) : engine_(with), positions_(positions) {}

  /// Runs the spans in order and keeps a snapshot at the end of each.
  void fill(std::span<std::vector<std::int32_t> const> spans);

  /// A prompt's result.
  struct served {
    request_memory memory;  ///< one slot, after the whole prompt
    buffer logits;          ///< of the last span
    std::int64_t tokens_forwarded = 0;
  };
  /// Serves a prompt: goes on from the longest snapshot that its leading spans match; the last span is always forwarded.
  served serve(std::span<std::vector<std::int32_t> const> spans) const;

 private:
  engine const& engine_;
  std::int64_t positions_;
  std::map<std::vector<std::int32_t>, request_memory> snapshots_;  // by all the tokens before them
};

}  // namespace hypic_engine
