// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/config.hpp"

namespace hypic_engine {

/// Row-major [rows, cols]. A projection is [out, in]: y[r] = sum over c of at(r, c) * x[c].
struct matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<float> data;
};

/// A linear attention layer. Sizes in the words of linear_config; a member that the config does without is empty.
struct linear_weights {
  matrix q;                 ///< [query_heads * key_dim, hidden]
  matrix k;                 ///< [key_heads * key_dim, hidden]
  matrix v;                 ///< [value_heads * value_dim, hidden]
  matrix g;                 ///< output gate: [state_heads * value_dim, hidden]
  matrix o;                 ///< [hidden, state_heads * value_dim]
  std::vector<float> norm;  ///< of the output, shared by the heads: [value_dim]

  matrix gk_down;              ///< gla, gk_proj.0: [gla_gate_rank, hidden]
  matrix gk_up;                ///< gla, gk_proj.1: [key_heads * key_dim, gla_gate_rank]
  std::vector<float> gk_bias;  ///< gla: [key_heads * key_dim]

  matrix a;                    ///< gated_deltanet: [state_heads, hidden]
  matrix b;                    ///< gated_deltanet: [state_heads, hidden]
  std::vector<float> a_log;    ///< gated_deltanet: [state_heads]
  std::vector<float> dt_bias;  ///< gated_deltanet: [state_heads]
  matrix q_conv;               ///< gated_deltanet: [rows of q, conv_size]; column j multiplies the input
  matrix k_conv;               ///<   conv_size - 1 - j steps back
  matrix v_conv;
};

/// A full attention layer, in the words of attention_config. Biases are empty without qkv_bias.
struct attention_weights {
  matrix q;  ///< [heads * head_dim, hidden]
  matrix k;  ///< [kv_heads * head_dim, hidden]
  matrix v;  ///< [kv_heads * head_dim, hidden]
  matrix o;  ///< [hidden, hidden]
  std::vector<float> q_bias;
  std::vector<float> k_bias;
  std::vector<float> v_bias;
};

/// x += mix(attn_norm(x)); x += mlp_down(silu(mlp_gate(h)) * mlp_up(h)) with h = mlp_norm(x).
struct layer_weights {
  std::vector<float> attn_norm;  ///< [hidden]
  std::variant<linear_weights, attention_weights> mixer;
  std::vector<float> mlp_norm;  ///< [hidden]
  matrix mlp_gate;              ///< [intermediate, hidden]
  matrix mlp_up;                ///< [intermediate, hidden]
  matrix mlp_down;              ///< [hidden, intermediate]
};

struct model_weights {
  matrix embeddings;  ///< [vocab, hidden]
  std::vector<layer_weights> layers;
  std::vector<float> norm;  ///< [hidden]
  matrix lm_head;           ///< [vocab, hidden]; empty in a model with tied embeddings
};

/// A model, ready to run: what it computes, and its weights in fp32.
struct checkpoint {
  model_config config;
  model_weights weights;

  /// The matrix that makes logits: lm_head, or the embeddings where the two are tied.
  matrix const& output_matrix() const noexcept;
};

/// The files that `load_checkpoint(path)` reads, as far as they can be told; none where it would refuse the path itself.
std::vector<std::filesystem::path> checkpoint_files(std::filesystem::path const& path);

/// Loads a checkpoint of a flash-linear-attention class. `path` is a safetensors file; or an index,
/// `*.safetensors.index.json`, whose shards lie beside it; or a folder with one index, or else one safetensors file.
/// The config is the metadata entry `config` where the file (or a shard) has one, otherwise `config.json` beside it.
/// Weights may be stored as F32, F16 or BF16.
/// Errors: engine_error for whatever the file, the index or the config say wrongly; for a tensor that is missing, has
/// another shape than the config gives it, belongs to no layer, or holds a NaN or an infinity.
checkpoint load_checkpoint(std::filesystem::path const& path);

/// Calls `visit` with each tensor's name in the checkpoint and its values, in an order that the config alone decides.
/// Two checkpoints with equal configs and equal values visit equally, however they were stored: together with
/// identity_text(config) this identifies the model.
void for_each_tensor(checkpoint const& model,
                     std::function<void(std::string_view name, std::span<float const> values)> const& visit);

}  // namespace hypic_engine
