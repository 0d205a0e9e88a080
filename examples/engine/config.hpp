// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hypic_engine {

enum class model_family { retnet, gla, gated_deltanet };

/// The `model_type` that configs use: "retnet", "gla", "gated_deltanet".
std::string_view name_of(model_family family);

/// The full attention layers of a hybrid model: causal, rotary on q and k, scale 1 / sqrt(head_dim).
struct attention_config {
  std::vector<std::int64_t> layers;  ///< their indices, ascending; empty: the model has none
  std::int64_t heads = 0;            ///< query heads
  std::int64_t kv_heads = 0;         ///< divides heads; query head h reads key head h / (heads / kv_heads)
  std::int64_t head_dim = 0;         ///< even
  bool qkv_bias = false;
  double rope_theta = 10000;

  bool operator==(attention_config const&) const = default;
};

/// The linear attention layers. State head h is made from query head h / (state_heads / query_heads), key head
/// h / (state_heads / key_heads) and value head h / (state_heads / value_heads); all three divide state_heads.
///
/// retnet and gla:  state_heads = query_heads = num_heads; key_heads = value_heads = num_kv_heads. gla's gates have
///                  the keys' heads.
/// gated_deltanet:  state_heads = value_heads = num_v_heads; query_heads = key_heads = num_heads. a, b, A_log and
///                  dt_bias have one value per state head.
struct linear_config {
  std::int64_t state_heads = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;
  std::int64_t key_dim = 0;           ///< per head; even in retnet, which rotates q and k
  std::int64_t value_dim = 0;         ///< per head
  bool output_gate = true;            ///< the norm of the output is multiplied by silu(g_proj(x))
  bool norm_weight = true;            ///< the norm of the output has a weight
  bool fused_norm = true;             ///< `fuse_norm`: decides what retnet and gla call the norm's weight
  std::int64_t conv_size = 0;         ///< gated_deltanet: length of the convolutions before silu; 0: silu alone
  bool negative_eigenvalues = false;  ///< gated_deltanet: b = 2 sigmoid(b_proj(x))
  std::optional<double> clamp_min;    ///< gla: least log gate, after the division by gla_gate_divisor

  bool operator==(linear_config const&) const = default;
};

inline constexpr double retnet_rope_theta = 10000;       ///< rotary base of retnet's linear layers
inline constexpr std::int64_t gla_gate_rank = 16;        ///< width between gk_proj.0 and gk_proj.1
inline constexpr double gla_gate_divisor = 16;           ///< log gate = logsigmoid(gk_proj(x)) / 16
inline constexpr double delta_normalize_epsilon = 1e-6;  ///< gated_deltanet: q / sqrt(sum of squares + this)

/// What a model computes. Two configs that are equal mean the same function of the same weights.
struct model_config {
  model_family family = model_family::retnet;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t intermediate_size = 0;        ///< of the gated MLP, silu(gate) * up
  std::int64_t max_position_embeddings = 0;  ///< bounds prompt plus generated tokens
  double norm_eps = 0;                       ///< of every RMSNorm
  bool tie_word_embeddings = false;          ///< logits come from the embeddings' matrix
  linear_config linear;
  attention_config attention;

  bool operator==(model_config const&) const = default;
};

bool is_attention_layer(model_config const& config, std::int64_t layer);

/// Reads the JSON config of one of flash-linear-attention's classes RetNetConfig, GLAConfig and GatedDeltaNetConfig.
/// Absent fields have the class's defaults. A field either has its meaning here, or is one that cannot change a
/// logit, or must have the one value that this engine supports.
/// Errors: engine_error, which begins with `source` and names field, found and expected: an unknown model_type or
/// field, a wrong type, a value out of range, sizes that do not divide, a feature that the engine lacks.
/// Source: flash-linear-attention, fla/models/*/configuration_*.py and fla/layers/*.py.
model_config parse_config(std::string_view json_text, std::string const& source);

/// All of a config in one line of text, equal exactly for equal configs: a part of the model's identity.
std::string identity_text(model_config const& config);

}  // namespace hypic_engine
