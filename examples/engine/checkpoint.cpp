// SPDX-License-Identifier: Apache-2.0
#include "engine/checkpoint.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "engine/error.hpp"
#include "engine/files.hpp"
#include "engine/json.hpp"
#include "engine/safetensors.hpp"

namespace hypic_engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view index_suffix = ".safetensors.index.json";
constexpr std::string_view file_suffix = ".safetensors";
constexpr std::string_view config_file = "config.json";

// ---- The tensors of a model: one walk, for loading and for visiting ----
//
// `visit(name, member, shape)`: the tensor's name, where it lives in model_weights (a matrix or a vector of floats),
// and the shape that it is stored in.

using extents = std::vector<std::int64_t>;

template <class Linear, class Visit>
void visit_gla_gate(model_config const& config, std::string const& at, Linear& w, Visit const& visit) {
  auto const key_size = config.linear.key_heads * config.linear.key_dim;
  visit(at + "gk_proj.0.weight", w.gk_down, extents{gla_gate_rank, config.hidden_size});
  visit(at + "gk_proj.1.weight", w.gk_up, extents{key_size, gla_gate_rank});
  visit(at + "gk_proj.1.bias", w.gk_bias, extents{key_size});
}

template <class Linear, class Visit>
void visit_delta_rule(model_config const& config, std::string const& at, Linear& w, Visit const& visit) {
  auto const& c = config.linear;
  visit(at + "a_proj.weight", w.a, extents{c.state_heads, config.hidden_size});
  visit(at + "b_proj.weight", w.b, extents{c.state_heads, config.hidden_size});
  visit(at + "A_log", w.a_log, extents{c.state_heads});
  visit(at + "dt_bias", w.dt_bias, extents{c.state_heads});
  if (c.conv_size == 0) return;
  visit(at + "q_conv1d.weight", w.q_conv, extents{c.query_heads * c.key_dim, 1, c.conv_size});
  visit(at + "k_conv1d.weight", w.k_conv, extents{c.key_heads * c.key_dim, 1, c.conv_size});
  visit(at + "v_conv1d.weight", w.v_conv, extents{c.value_heads * c.value_dim, 1, c.conv_size});
}

std::string output_norm_name(model_config const& config) {
  if (config.family == model_family::gated_deltanet) return "o_norm.weight";
  return config.linear.output_gate && config.linear.fused_norm ? "g_norm_swish_gate.weight" : "g_norm.weight";
}

template <class Linear, class Visit>
void visit_linear(model_config const& config, std::string const& at, Linear& w, Visit const& visit) {
  auto const& c = config.linear;
  auto const hidden = config.hidden_size;
  auto const output_size = c.state_heads * c.value_dim;
  visit(at + "q_proj.weight", w.q, extents{c.query_heads * c.key_dim, hidden});
  visit(at + "k_proj.weight", w.k, extents{c.key_heads * c.key_dim, hidden});
  visit(at + "v_proj.weight", w.v, extents{c.value_heads * c.value_dim, hidden});
  if (c.output_gate) visit(at + "g_proj.weight", w.g, extents{output_size, hidden});
  visit(at + "o_proj.weight", w.o, extents{hidden, output_size});
  if (c.norm_weight) visit(at + output_norm_name(config), w.norm, extents{c.value_dim});
  if (config.family == model_family::gla) visit_gla_gate(config, at, w, visit);
  if (config.family == model_family::gated_deltanet) visit_delta_rule(config, at, w, visit);
}

template <class Attention, class Visit>
void visit_attention(model_config const& config, std::string const& at, Attention& w, Visit const& visit) {
  auto const hidden = config.hidden_size;
  auto const key_size = config.attention.kv_heads * config.attention.head_dim;
  visit(at + "q_proj.weight", w.q, extents{hidden, hidden});
  visit(at + "k_proj.weight", w.k, extents{key_size, hidden});
  visit(at + "v_proj.weight", w.v, extents{key_size, hidden});
  visit(at + "o_proj.weight", w.o, extents{hidden, hidden});
  if (!config.attention.qkv_bias) return;
  visit(at + "q_proj.bias", w.q_bias, extents{hidden});
  visit(at + "k_proj.bias", w.k_bias, extents{key_size});
  visit(at + "v_proj.bias", w.v_bias, extents{key_size});
}

template <class Layer, class Visit>
void visit_layer(model_config const& config, std::string const& at, Layer& w, Visit const& visit) {
  auto const hidden = config.hidden_size;
  visit(at + "attn_norm.weight", w.attn_norm, extents{hidden});
  if (auto* attention = std::get_if<attention_weights>(&w.mixer)) {
    visit_attention(config, at + "attn.", *attention, visit);
  } else {
    visit_linear(config, at + "attn.", std::get<linear_weights>(w.mixer), visit);
  }
  visit(at + "mlp_norm.weight", w.mlp_norm, extents{hidden});
  visit(at + "mlp.gate_proj.weight", w.mlp_gate, extents{config.intermediate_size, hidden});
  visit(at + "mlp.up_proj.weight", w.mlp_up, extents{config.intermediate_size, hidden});
  visit(at + "mlp.down_proj.weight", w.mlp_down, extents{hidden, config.intermediate_size});
}

template <class Weights, class Visit>
void visit_model(model_config const& config, Weights& w, Visit const& visit) {
  visit("model.embeddings.weight", w.embeddings, extents{config.vocab_size, config.hidden_size});
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    visit_layer(config, "model.layers." + std::to_string(i) + ".", w.layers[i], visit);
  }
  visit("model.norm.weight", w.norm, extents{config.hidden_size});
  if (!config.tie_word_embeddings) {
    visit("lm_head.weight", w.lm_head, extents{config.vocab_size, config.hidden_size});
  }
}

model_weights empty_weights(model_config const& config) {
  model_weights out;
  out.layers.resize(static_cast<std::size_t>(config.layers));
  for (auto const i : config.attention.layers) out.layers[static_cast<std::size_t>(i)].mixer = attention_weights{};
  return out;
}

// ---- Files ----

using shard_list = std::vector<safetensors>;

bool is_index(fs::path const& path) { return path.filename().string().ends_with(index_suffix); }

std::vector<fs::path> files_ending_with(fs::path const& folder, std::string_view suffix) {
  std::vector<fs::path> out;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().filename().string().ends_with(suffix)) out.push_back(entries->path());
  }
  if (error) fail(in_quotes(folder.string()), ": found ", error.message(), "; expected a readable folder");
  return out;
}

/// The file that a folder stands for.
fs::path file_of(fs::path const& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  auto const indices = files_ending_with(path, index_suffix);
  if (indices.size() == 1) return indices.front();
  auto const files = files_ending_with(path, file_suffix);
  if (indices.empty() && files.size() == 1) return files.front();
  fail(in_quotes(path.string()), ": found a folder with ", indices.size(), " files *", index_suffix, " and ",
       files.size(), " files *", file_suffix, "; expected one index, or else one safetensors file");
}

using weight_map = std::map<std::string, std::string>;  // tensor name to shard file name

weight_map read_index(fs::path const& path) {
  auto const source = in_quotes(path.string());
  auto const bytes = read_file(path);
  auto const index = parse_json_object({reinterpret_cast<char const*>(bytes.data()), bytes.size()}, source);
  auto const map = index.find("weight_map");
  if (map == index.end()) fail(source, ": found no 'weight_map'; expected an object of shard names");
  if (!map->is_object()) fail(source, ": found weight_map ", shown(*map), "; expected an object of shard names");
  weight_map out;
  for (auto const& [name, file] : map->items()) {
    auto const shard = file.is_string() ? file.get<std::string>() : std::string();
    if (shard.empty() || fs::path(shard).filename() != shard) {
      fail(source, ": found ", shown(file), " for tensor ", in_quotes(name), "; expected the name of a file beside it");
    }
    out.emplace(name, shard);
  }
  return out;
}

/// Each tensor must lie in the shard that the index names, and in no other.
void require_as_indexed(safetensors const& shard, std::string const& file, weight_map const& map) {
  for (auto const& t : shard.tensors()) {
    auto const at = map.find(t.name);
    if (at == map.end() || at->second != file) {
      fail(shard.source(), ": found tensor ", in_quotes(t.name), "; expected it ",
           at == map.end() ? "to be in the index" : "in shard " + in_quotes(at->second) + " as the index says");
    }
  }
  for (auto const& [name, named_file] : map) {
    if (named_file == file && shard.find(name) == nullptr) {
      fail(shard.source(), ": found no tensor ", in_quotes(name), "; expected it here as the index says");
    }
  }
}

std::set<std::string> shard_names(weight_map const& map) {
  std::set<std::string> files;
  for (auto const& [name, file] : map) files.insert(file);
  return files;
}

shard_list read_indexed_shards(fs::path const& index) {
  auto const map = read_index(index);
  shard_list out;
  for (auto const& file : shard_names(map)) {
    out.push_back(safetensors::read(index.parent_path() / file));
    require_as_indexed(out.back(), file, map);
  }
  return out;
}

shard_list read_shards(fs::path const& file) {
  if (is_index(file)) return read_indexed_shards(file);
  shard_list out;
  out.push_back(safetensors::read(file));
  return out;
}

/// The shard whose metadata hold the config, or null. Shards may repeat it, but not differ.
safetensors const* shard_with_config(shard_list const& shards) {
  safetensors const* first = nullptr;
  for (auto const& shard : shards) {
    if (!shard.metadata().contains("config")) continue;
    if (first == nullptr) first = &shard;
    if (shard.metadata().at("config") != first->metadata().at("config")) {
      fail(shard.source(), ": found another metadata entry 'config' than in ", first->source(),
           "; expected one config");
    }
  }
  return first;
}

model_config read_config(shard_list const& shards, fs::path const& folder) {
  if (auto const* shard = shard_with_config(shards)) {
    return parse_config(shard->metadata().at("config"), shard->source() + ": metadata entry 'config'");
  }
  auto const path = folder / config_file;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail(shards.empty() ? in_quotes(folder.string()) : shards.front().source(),
         ": found no config; expected a metadata entry 'config' or a file ", in_quotes(path.string()));
  }
  auto const bytes = read_file(path);
  return parse_config({reinterpret_cast<char const*>(bytes.data()), bytes.size()}, in_quotes(path.string()));
}

// ---- Loading ----

/// Hands out the shards' tensors, each once.
class tensor_supply {
 public:
  tensor_supply(shard_list const& shards, std::string where) : where_(std::move(where)) {
    for (auto const& shard : shards) {
      for (auto const& t : shard.tensors()) tensors_.emplace(t.name, &t);
    }
  }

  /// The values of the tensor `name`, which must have that shape and be finite.
  std::vector<float> take(std::string const& name, extents const& shape) {
    auto const at = tensors_.find(name);
    if (at == tensors_.end()) refuse(name, "nothing", "a tensor of shape " + shape_text(shape));
    auto const& stored = *at->second;
    if (stored.shape != shape) refuse(name, "shape " + shape_text(stored.shape), shape_text(shape));
    tensors_.erase(at);
    auto values = to_float32(stored);
    require_finite(name, values);
    return values;
  }

  /// Nothing may be left over.
  void finish(model_config const& config) const {
    if (tensors_.empty()) return;
    refuse(std::string(tensors_.begin()->first), "a tensor that this config has no use for",
           "only those of a " + std::string(name_of(config.family)) + " model");
  }

 private:
  void require_finite(std::string const& name, std::vector<float> const& values) const {
    auto const bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
    if (bad == values.end()) return;
    refuse(name, std::to_string(*bad) + " at element " + std::to_string(bad - values.begin()), "finite weights");
  }

  [[noreturn]] void refuse(std::string const& name, std::string const& found, std::string const& expected) const {
    fail(where_, ": tensor ", in_quotes(name), ": found ", found, "; expected ", expected);
  }

  std::string where_;
  std::map<std::string_view, tensor const*> tensors_;
};

/// Fills the members of model_weights from a supply.
class weight_loader {
 public:
  explicit weight_loader(tensor_supply& supply) : supply_(supply) {}

  void operator()(std::string const& name, std::vector<float>& member, extents const& shape) const {
    member = supply_.take(name, shape);
  }

  void operator()(std::string const& name, matrix& member, extents const& shape) const {
    member = {shape.front(), shape.back(), supply_.take(name, shape)};
  }

 private:
  tensor_supply& supply_;
};

std::span<float const> values_of(std::vector<float> const& member) { return member; }
std::span<float const> values_of(matrix const& member) { return member.data; }

}  // namespace

matrix const& checkpoint::output_matrix() const noexcept {
  return config.tie_word_embeddings ? weights.embeddings : weights.lm_head;
}

std::vector<fs::path> checkpoint_files(fs::path const& path) {
  try {
    auto const file = file_of(path);
    std::vector<fs::path> files{file, file.parent_path() / config_file};
    if (is_index(file))
      for (auto const& shard : shard_names(read_index(file))) files.push_back(file.parent_path() / shard);
    return files;
  } catch (engine_error const&) {
    return {};
  }
}

checkpoint load_checkpoint(fs::path const& path) {
  auto const file = file_of(path);
  auto const shards = read_shards(file);
  checkpoint out;
  out.config = read_config(shards, file.parent_path());
  out.weights = empty_weights(out.config);
  tensor_supply supply(shards, in_quotes(file.string()));
  visit_model(out.config, out.weights, weight_loader(supply));
  supply.finish(out.config);
  return out;
}

void for_each_tensor(checkpoint const& model,
                     std::function<void(std::string_view name, std::span<float const> values)> const& visit) {
  visit_model(model.config, model.weights,
              [&visit](std::string_view name, auto const& member, extents const&) { visit(name, values_of(member)); });
}

}  // namespace hypic_engine
