// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/compute.hpp"
#include "engine/token_mixer.hpp"
#include "hypic/core/observer.hpp"
#include "hypic/store/model_layout.hpp"

namespace hypic_engine {

/// The rows of one forward pass. Runs lie one after another and cover all rows.
struct forward_rows {
  std::span<std::int32_t const> tokens;
  std::span<std::int64_t const> positions;  ///< true ones
  std::vector<row_block> runs;              ///< consecutive tokens each, empty runs included
};

/// A checkpoint that runs: the computation of each row by itself; what happens between rows is a mixer's.
/// A row's bits depend on its run alone, whatever the batch and the threads.
class model {
 public:
  /// Records of this model keep `head_rows` rows.
  explicit model(checkpoint loaded, std::int32_t head_rows = 8);

  model_config const& config() const noexcept { return checkpoint_.config; }
  hypic::model_layout const& layout() const noexcept { return layout_; }
  /// Names weights, config, layout and BLAS. Source: hypic::model_fingerprint.
  std::string const& fingerprint() const noexcept { return fingerprint_; }

  /// The hidden rows after the last layer, [rows, hidden]. `watch` hears of the library's calls, as the mixer's own does.
  /// Errors: engine_error (a token outside of the vocabulary; what the mixer throws).
  buffer forward(forward_rows const& rows, token_mixer& mixer, int threads, hypic::observer* watch = nullptr) const;

  /// Logits of one run of hidden rows, [run.rows, vocab]. Errors: engine_error (one that is not finite).
  buffer logits(buffer const& hidden, row_block run, int threads) const;

 private:
  struct pass;  // one forward pass: its rows, its blocks and its tables

  void linear_mix(pass const& at, std::int32_t layer, buffer& hidden, token_mixer& mixer) const;
  buffer convolve(pass const& at, std::int32_t layer, buffer const& raw, token_mixer& mixer) const;
  void attention_mix(pass const& at, std::int32_t layer, buffer& hidden, token_mixer& mixer) const;
  void feed_forward(pass const& at, layer_weights const& weights, buffer& hidden) const;

  layer_weights const& layer_weights_of(std::int32_t layer) const {
    return checkpoint_.weights.layers[static_cast<std::size_t>(layer)];
  }

  checkpoint checkpoint_;
  hypic::model_layout layout_;
  std::string fingerprint_;
  std::optional<hypic::rotary_embedding> linear_rotary_;
  std::optional<hypic::rotary_embedding> attention_rotary_;
  std::vector<float> retention_;          // retnet: the log decay of each head
  std::vector<std::vector<float>> taps_;  // gated_deltanet: each layer's convolutions of q, k, v as one
};

}  // namespace hypic_engine
