// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.hpp"
#include "engine/safetensors.hpp"

/// Small valid checkpoints with random weights, in every layout that the three config classes allow. Names and shapes
/// are spelled out here once more, independently of the loader.
namespace synthetic {

/// What to make. A field that a family lacks is ignored. Sizes in the words of flash-linear-attention's configs.
struct options {
  hypic_engine::model_family family = hypic_engine::model_family::retnet;
  std::uint64_t seed = 1;
  std::int64_t vocab_size = 32;
  std::int64_t hidden_size = 16;
  std::int64_t num_hidden_layers = 3;
  std::int64_t intermediate_size = 24;
  std::int64_t max_position_embeddings = 512;
  std::int64_t num_heads = 2;
  std::optional<std::int64_t> num_kv_heads{};  ///< retnet, gla
  std::optional<std::int64_t> num_v_heads{};   ///< gated_deltanet
  std::int64_t head_dim = 8;                   ///< gated_deltanet
  double expand_k = 1;                         ///< retnet, gla
  double expand_v = 1;
  bool output_gate = true;
  bool fuse_norm = true;
  bool elementwise_affine = true;     ///< retnet, gla
  std::optional<double> clamp_min{};  ///< gla
  bool use_short_conv = true;         ///< gated_deltanet
  std::int64_t conv_size = 4;         ///< gated_deltanet
  bool allow_neg_eigval = false;      ///< gated_deltanet
  bool tie_word_embeddings = false;
  std::vector<std::int64_t> attention_layers{1};  ///< empty: `attn` is null
  std::int64_t attention_heads = 2;
  std::int64_t attention_kv_heads = 1;
  bool qkv_bias = false;
  hypic_engine::element_type stored_as = hypic_engine::element_type::f32;  ///< or bf16; A_log and dt_bias stay f32
};

struct named_weights {
  std::string name;
  hypic_engine::element_type stored_as;
  std::vector<std::int64_t> shape;
  std::vector<float> values;  ///< exact in stored_as
};

/// A checkpoint that a test may still spoil.
struct model {
  nlohmann::json config;
  std::vector<named_weights> tensors;

  named_weights& at(std::string const& name);
};

model make(options const& what);

/// Options worth a test each, for all three families: defaults, expand_v 2, expand_k 0.5, tied embeddings, grouped
/// heads of each kind, no gate, unfused norm, no norm weight, biases, no attention layer, attention layers only,
/// clamped gates, no convolution, negative eigenvalues, bf16.
struct variant {
  std::string name;
  options what;
};
std::vector<variant> variants();

/// The bytes of one safetensors file with the config in its metadata.
std::vector<std::byte> file_bytes(model const& m);

/// Writes that file.
void write_file(model const& m, std::filesystem::path const& path);

/// Writes `shards` shards, their index and a config.json into an existing folder; returns the index's path.
std::filesystem::path write_sharded(model const& m, std::filesystem::path const& folder, std::size_t shards);

/// Writes text, as it is.
void write_text(std::filesystem::path const& path, std::string const& text);

}  // namespace synthetic
