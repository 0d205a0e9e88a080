// SPDX-License-Identifier: Apache-2.0
#include "engine/synthetic.hpp"

#include <bit>
#include <cmath>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>

#include "engine/files.hpp"

namespace synthetic {
namespace {

using hypic_engine::element_type;
using hypic_engine::model_family;
using nlohmann::json;
using shape = std::vector<std::int64_t>;

/// bf16 keeps the upper half of a float.
constexpr std::uint32_t brain_float_mask = 0xffff0000U;

class maker {
 public:
  explicit maker(options const& what) : what_(what), random_(what.seed) {}

  model make() {
    add("model.embeddings.weight", {what_.vocab_size, what_.hidden_size}, -1, 1);
    for (std::int64_t i = 0; i < what_.num_hidden_layers; ++i) add_layer(i);
    add_norm("model.norm.weight", what_.hidden_size);
    if (!what_.tie_word_embeddings) add_projection("lm_head.weight", what_.vocab_size, what_.hidden_size);
    return {config(), std::move(tensors_)};
  }

 private:
  // ---- Weights ----

  float uniform(double low, double high) {
    return static_cast<float>(low + (high - low) * static_cast<double>(random_() >> 11U) * 0x1p-53);
  }

  void add_as(element_type stored_as, std::string name, shape extents, double low, double high) {
    std::int64_t count = 1;
    for (auto const extent : extents) count *= extent;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (auto& value : values) {
      value = uniform(low, high);
      if (stored_as == element_type::bf16) {
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & brain_float_mask);
      }
    }
    tensors_.push_back({std::move(name), stored_as, std::move(extents), std::move(values)});
  }

  void add(std::string name, shape extents, double low, double high) {
    add_as(what_.stored_as, std::move(name), std::move(extents), low, high);
  }

  void add_projection(std::string name, std::int64_t rows, std::int64_t cols) {
    auto const reach = std::sqrt(3.0 / static_cast<double>(cols));  // outputs as large as inputs
    add(std::move(name), {rows, cols}, -reach, reach);
  }

  void add_norm(std::string name, std::int64_t size) { add(std::move(name), {size}, 0.5, 1.5); }

  void add_layer(std::int64_t index) {
    auto const at = "model.layers." + std::to_string(index) + ".";
    bool full_attention = false;
    for (auto const layer : what_.attention_layers) full_attention = full_attention || layer == index;
    add_norm(at + "attn_norm.weight", what_.hidden_size);
    if (full_attention) {
      add_attention(at + "attn.");
    } else if (what_.family == model_family::gated_deltanet) {
      add_delta_rule(at + "attn.");
    } else {
      add_retnet_or_gla(at + "attn.");
    }
    add_norm(at + "mlp_norm.weight", what_.hidden_size);
    add_projection(at + "mlp.gate_proj.weight", what_.intermediate_size, what_.hidden_size);
    add_projection(at + "mlp.up_proj.weight", what_.intermediate_size, what_.hidden_size);
    add_projection(at + "mlp.down_proj.weight", what_.hidden_size, what_.intermediate_size);
  }

  void add_attention(std::string const& at) {
    auto const hidden = what_.hidden_size;
    auto const key_size = hidden / what_.attention_heads * what_.attention_kv_heads;
    add_projection(at + "q_proj.weight", hidden, hidden);
    add_projection(at + "k_proj.weight", key_size, hidden);
    add_projection(at + "v_proj.weight", key_size, hidden);
    add_projection(at + "o_proj.weight", hidden, hidden);
    if (!what_.qkv_bias) return;
    add(at + "q_proj.bias", {hidden}, -1, 1);
    add(at + "k_proj.bias", {key_size}, -1, 1);
    add(at + "v_proj.bias", {key_size}, -1, 1);
  }

  void add_retnet_or_gla(std::string const& at) {
    auto const hidden = what_.hidden_size;
    auto const key_size = std::llround(static_cast<double>(hidden) * what_.expand_k);
    auto const value_size = std::llround(static_cast<double>(hidden) * what_.expand_v);
    auto const groups = what_.num_heads / what_.num_kv_heads.value_or(what_.num_heads);
    add_projection(at + "q_proj.weight", key_size, hidden);
    add_projection(at + "k_proj.weight", key_size / groups, hidden);
    add_projection(at + "v_proj.weight", value_size / groups, hidden);
    if (what_.output_gate) add_projection(at + "g_proj.weight", value_size, hidden);
    add_projection(at + "o_proj.weight", hidden, value_size);
    if (what_.elementwise_affine) {
      bool const one_kernel = what_.output_gate && what_.fuse_norm;
      add_norm(at + (one_kernel ? "g_norm_swish_gate.weight" : "g_norm.weight"), value_size / what_.num_heads);
    }
    if (what_.family == model_family::retnet) return;
    add_projection(at + "gk_proj.0.weight", 16, hidden);
    add_projection(at + "gk_proj.1.weight", key_size / groups, 16);
    add(at + "gk_proj.1.bias", {key_size / groups}, -2, 4);
  }

  void add_delta_rule(std::string const& at) {
    auto const hidden = what_.hidden_size;
    auto const value_heads = what_.num_v_heads.value_or(what_.num_heads);
    auto const value_dim = std::llround(static_cast<double>(what_.head_dim) * what_.expand_v);
    auto const key_size = what_.num_heads * what_.head_dim;
    auto const value_size = value_heads * value_dim;
    add_projection(at + "q_proj.weight", key_size, hidden);
    add_projection(at + "k_proj.weight", key_size, hidden);
    add_projection(at + "v_proj.weight", value_size, hidden);
    add_projection(at + "a_proj.weight", value_heads, hidden);
    add_projection(at + "b_proj.weight", value_heads, hidden);
    add_as(element_type::f32, at + "A_log", {value_heads}, -2, 1);
    add_as(element_type::f32, at + "dt_bias", {value_heads}, -4, -1);
    if (what_.use_short_conv) {
      add(at + "q_conv1d.weight", {key_size, 1, what_.conv_size}, -1, 1);
      add(at + "k_conv1d.weight", {key_size, 1, what_.conv_size}, -1, 1);
      add(at + "v_conv1d.weight", {value_size, 1, what_.conv_size}, -1, 1);
    }
    if (what_.output_gate) add_projection(at + "g_proj.weight", value_size, hidden);
    add_norm(at + "o_norm.weight", value_dim);
    add_projection(at + "o_proj.weight", hidden, value_size);
  }

  // ---- Config ----

  static json number_or_null(std::optional<std::int64_t> const& value) { return value ? json(*value) : json(); }

  json config() const {
    json out{{"model_type", hypic_engine::name_of(what_.family)},
             {"vocab_size", what_.vocab_size},
             {"hidden_size", what_.hidden_size},
             {"num_hidden_layers", what_.num_hidden_layers},
             {"intermediate_size", what_.intermediate_size},
             {"max_position_embeddings", what_.max_position_embeddings},
             {"num_heads", what_.num_heads},
             {"expand_v", what_.expand_v},
             {"fuse_norm", what_.fuse_norm},
             {"norm_eps", 1e-6},
             {"tie_word_embeddings", what_.tie_word_embeddings},
             {"attn", attention_config()}};
    out.update(what_.family == model_family::gated_deltanet ? delta_rule_config() : retnet_or_gla_config());
    return out;
  }

  json attention_config() const {
    if (what_.attention_layers.empty()) return {};
    return {{"layers", what_.attention_layers},
            {"num_heads", what_.attention_heads},
            {"num_kv_heads", what_.attention_kv_heads},
            {"qkv_bias", what_.qkv_bias},
            {"window_size", nullptr},
            {"rope_theta", 10000.0}};
  }

  json delta_rule_config() const {
    return {{"head_dim", what_.head_dim},    {"num_v_heads", number_or_null(what_.num_v_heads)},
            {"use_gate", what_.output_gate}, {"use_short_conv", what_.use_short_conv},
            {"conv_size", what_.conv_size},  {"allow_neg_eigval", what_.allow_neg_eigval}};
  }

  json retnet_or_gla_config() const {
    json out{{"expand_k", what_.expand_k},
             {"num_kv_heads", number_or_null(what_.num_kv_heads)},
             {"use_output_gate", what_.output_gate},
             {"elementwise_affine", what_.elementwise_affine}};
    if (what_.clamp_min) out["clamp_min"] = *what_.clamp_min;
    return out;
  }

  options what_;
  std::mt19937_64 random_;
  std::vector<named_weights> tensors_;
};

std::vector<std::byte> stored_bytes(named_weights const& w) {
  auto const all = std::as_bytes(std::span(w.values));
  if (w.stored_as != element_type::bf16) return {all.begin(), all.end()};
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < all.size(); i += 4) out.insert(out.end(), {all[i + 2], all[i + 3]});
  return out;
}

std::vector<std::byte> serialized(std::span<named_weights const> weights, hypic_engine::text_map const& metadata) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<hypic_engine::tensor> tensors;
  for (auto const& w : weights) bytes.push_back(stored_bytes(w));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    tensors.push_back({weights[i].name, weights[i].stored_as, weights[i].shape, bytes[i]});
  }
  return hypic_engine::serialize_safetensors(metadata, tensors);
}

void add_retnet_and_gla_variants(std::vector<variant>& out, model_family family, std::string const& name) {
  options const base{.family = family, .seed = 11};
  auto const add = [&](std::string const& what, auto const& change) {
    out.push_back({name + " " + what, base});
    change(out.back().what);
  };
  add("defaults", [](options&) {});
  add("expand_v 2", [](options& o) { o.expand_v = 2; });
  add("expand_k 0.5", [](options& o) { o.expand_k = 0.5; });
  add("grouped key heads", [](options& o) { o.num_heads = 4, o.num_kv_heads = 2; });
  add("tied embeddings", [](options& o) { o.tie_word_embeddings = true; });
  add("no gate", [](options& o) { o.output_gate = false; });
  add("unfused norm", [](options& o) { o.fuse_norm = false; });
  add("no norm weight", [](options& o) { o.elementwise_affine = false; });
  add("attention biases", [](options& o) { o.qkv_bias = true; });
  add("no attention layer", [](options& o) { o.attention_layers.clear(); });
  add("attention layers only", [](options& o) { o.attention_layers = {0, 1, 2}; });
  add("bf16", [](options& o) { o.stored_as = element_type::bf16; });
}

void add_delta_rule_variants(std::vector<variant>& out) {
  options const base{.family = model_family::gated_deltanet, .seed = 12};
  auto const add = [&](std::string const& what, auto const& change) {
    out.push_back({"gated_deltanet " + what, base});
    change(out.back().what);
  };
  add("defaults", [](options&) {});
  add("expand_v 2", [](options& o) { o.expand_v = 2; });
  add("grouped key heads", [](options& o) { o.num_v_heads = 4; });
  add("tied embeddings", [](options& o) { o.tie_word_embeddings = true; });
  add("no gate", [](options& o) { o.output_gate = false; });
  add("no convolution", [](options& o) { o.use_short_conv = false; });
  add("convolution of length 2", [](options& o) { o.conv_size = 2; });
  add("negative eigenvalues", [](options& o) { o.allow_neg_eigval = true; });
  add("attention biases", [](options& o) { o.qkv_bias = true; });
  add("no attention layer", [](options& o) { o.attention_layers.clear(); });
  add("bf16", [](options& o) { o.stored_as = element_type::bf16; });
}

}  // namespace

named_weights& model::at(std::string const& name) {
  for (auto& w : tensors) {
    if (w.name == name) return w;
  }
  throw std::out_of_range("the synthetic model has no tensor " + name);
}

model make(options const& what) { return maker(what).make(); }

std::vector<variant> variants() {
  std::vector<variant> out;
  add_retnet_and_gla_variants(out, model_family::retnet, "retnet");
  add_retnet_and_gla_variants(out, model_family::gla, "gla");
  out.push_back({"gla clamped gates", {.family = model_family::gla, .seed = 13, .clamp_min = -0.05}});
  add_delta_rule_variants(out);
  return out;
}

std::vector<std::byte> file_bytes(model const& m) {
  return serialized(m.tensors, {{"config", m.config.dump()}, {"format", "pt"}});
}

void write_file(model const& m, std::filesystem::path const& path) { hypic_engine::write_file(path, file_bytes(m)); }

std::filesystem::path write_sharded(model const& m, std::filesystem::path const& folder, std::size_t shards) {
  json map = json::object();
  std::span<named_weights const> const all(m.tensors);
  for (std::size_t i = 0; i < shards; ++i) {
    auto const first = all.size() * i / shards;
    auto const part = all.subspan(first, all.size() * (i + 1) / shards - first);
    auto const file = "model-" + std::to_string(i + 1) + "-of-" + std::to_string(shards) + ".safetensors";
    hypic_engine::write_file(folder / file, serialized(part, {{"format", "pt"}}));
    for (auto const& w : part) map[w.name] = file;
  }
  auto const index = folder / "model.safetensors.index.json";
  write_text(index, json{{"metadata", {{"format", "pt"}}}, {"weight_map", map}}.dump());
  write_text(folder / "config.json", m.config.dump());
  return index;
}

void write_text(std::filesystem::path const& path, std::string const& text) {
  hypic_engine::write_file(path, std::as_bytes(std::span(text)));
}

}  // namespace synthetic
