// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "engine/checkpoint.hpp"

/// A whole checkpoint in fp64: plain loops, one token after the other within each layer, as the papers state the layers.
/// The engine is measured against this, so it shares no code with the engine's forward pass or with the library: it takes
/// the loaded weights and their config, nothing else.
namespace oracle {

using row = std::vector<double>;

struct model_run {
  std::vector<row> logits;  ///< a row a token
  /// After the last token: of each layer, of each of its state heads, [key_dim * value_dim]; none in attention layers.
  std::vector<std::vector<row>> states;
};

/// Runs `tokens` from position 0, from nothing.
model_run forward(hypic_engine::checkpoint const& model, std::vector<std::int32_t> const& tokens);

}  // namespace oracle
