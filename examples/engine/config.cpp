// SPDX-License-Identifier: Apache-2.0
#include "engine/config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <ios>
#include <set>
#include <sstream>
#include <utility>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace hypic_engine {
namespace {

using nlohmann::json;

constexpr std::int64_t largest_size = std::int64_t{1} << 24;  // keeps every product of two sizes far from overflow
constexpr std::int64_t most_layers = 1024;

constexpr std::array<std::pair<std::string_view, model_family>, 3> families{
    {{"retnet", model_family::retnet}, {"gla", model_family::gla}, {"gated_deltanet", model_family::gated_deltanet}}};

/// Fields that cannot change a logit, whatever they hold.
constexpr std::array no_effect{
    // Which kernel of the training library computes a layer, and how training computes its loss.
    "attn_mode", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "initializer_range",
    // What a call of the model returns, and to whom.
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward",
    // Labels, token ids and bookkeeping of the transformers library.
    "id2label", "label2id", "problem_type", "is_encoder_decoder", "pad_token_id", "bos_token_id", "eos_token_id",
    "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path"};

/// Reads the fields of one JSON object and knows which of them were asked for. `prefix` precedes names in messages.
class field_reader {
 public:
  field_reader(json const& object, std::string source, std::string prefix)
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  /// The field, unless it is absent. It counts as known from now on.
  json const* find(std::string const& name) {
    known_.insert(name);
    auto const at = object_.find(name);
    return at == object_.end() ? nullptr : &*at;
  }

  /// The field, unless it is absent or null.
  json const* find_value(std::string const& name) {
    auto const* value = find(name);
    return value != nullptr && value->is_null() ? nullptr : value;
  }

  std::int64_t size(std::string const& name, std::int64_t fallback, std::int64_t most = largest_size) {
    auto const* value = find(name);
    return value == nullptr ? fallback : as_size(name, *value, 1, most);
  }

  std::optional<std::int64_t> optional_size(std::string const& name) {
    auto const* value = find_value(name);
    return value == nullptr ? std::nullopt : std::optional(as_size(name, *value, 1, largest_size));
  }

  double number(std::string const& name, double fallback) {
    auto const* value = find(name);
    return value == nullptr ? fallback : as_number(name, *value);
  }

  double positive(std::string const& name, double fallback) {
    auto const value = number(name, fallback);
    if (!(value > 0)) refuse(name, value, "a number above 0");
    return value;
  }

  /// A number that fp32 holds as one above 0.
  double positive_float(std::string const& name, double fallback) {
    auto const value = positive(name, fallback);
    if (auto const held = static_cast<float>(value); !(held > 0 && std::isfinite(held)))
      refuse(name, value, "a number above 0 that fp32 holds");
    return value;
  }

  bool flag(std::string const& name, bool fallback) {
    auto const* value = find(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(name, shown(*value), "true or false");
    return value->get<bool>();
  }

  /// A feature that the engine lacks: the field must be absent or hold `only`.
  void require(std::string const& name, json const& only) {
    auto const* value = find(name);
    if (value != nullptr && *value != only)
      refuse(name, shown(*value), only.dump() + ", all that this engine supports");
  }

  std::int64_t as_size(std::string const& name, json const& value, std::int64_t least, std::int64_t most) const {
    auto const real = value.is_number_integer() ? value.get<double>() : -1.0;
    if (real < static_cast<double>(least) || real > static_cast<double>(most)) {
      refuse(name, shown(value), "an integer of " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value.get<std::int64_t>();
  }

  double as_number(std::string const& name, json const& value) const {
    if (!value.is_number()) refuse(name, shown(value), "a number");
    return value.get<double>();
  }

  template <class Found>
  [[noreturn]] void refuse(std::string const& name, Found const& found, std::string const& expected) const {
    fail(source_, ": config field ", in_quotes(prefix_ + name), ": found ", found, "; expected ", expected);
  }

  /// Refuses the first field that nobody has asked for.
  void finish(std::string_view kind) const {
    for (auto const& [name, value] : object_.items()) {
      if (!known_.contains(name)) refuse(name, shown(value), "only fields of a " + std::string(kind) + " config");
    }
  }

 private:
  json const& object_;
  std::string source_;
  std::string prefix_;
  std::set<std::string> known_;
};

model_family read_family(field_reader& fields) {
  constexpr auto expected = "'retnet', 'gla' or 'gated_deltanet'";
  auto const* value = fields.find("model_type");
  if (value == nullptr) fields.refuse("model_type", "nothing", expected);
  for (auto const& [name, family] : families) {
    if (*value == name) return family;
  }
  fields.refuse("model_type", shown(*value), expected);
}

std::int64_t read_intermediate_size(field_reader& fields, std::int64_t hidden_size, double default_ratio) {
  auto const* ratio_field = fields.find("hidden_ratio");
  bool const null_ratio = ratio_field != nullptr && ratio_field->is_null();
  auto const ratio = null_ratio ? 4.0 : fields.positive("hidden_ratio", default_ratio);
  if (auto const size = fields.optional_size("intermediate_size")) return *size;
  // Two thirds of the hidden size times the ratio, cut to an integer, up to a multiple of 256.
  auto const size = std::ceil(std::floor(static_cast<double>(hidden_size) * ratio * 2 / 3) / 256) * 256;
  if (size < 1 || size > static_cast<double>(largest_size)) {
    fields.refuse("hidden_ratio", ratio, "one that makes an intermediate size of 1 to " + std::to_string(largest_size));
  }
  return static_cast<std::int64_t>(size);
}

void require_divisor(field_reader const& fields, std::string const& name, std::int64_t divisor, std::int64_t of) {
  if (of % divisor != 0) fields.refuse(name, divisor, "a divisor of " + std::to_string(of));
}

/// size * the field `name`, which must come out whole.
std::int64_t read_expanded(field_reader& fields, std::string const& name, double fallback, std::int64_t size) {
  auto const factor = fields.positive(name, fallback);
  auto const exact = static_cast<double>(size) * factor;
  auto const whole = std::round(exact);
  bool const is_whole = std::abs(exact - whole) <= 1e-9 * exact;
  if (!is_whole || whole < 1 || whole > static_cast<double>(largest_size)) {
    fields.refuse(
        name, factor,
        "a factor that makes " + std::to_string(size) + " an integer of 1 to " + std::to_string(largest_size));
  }
  return static_cast<std::int64_t>(whole);
}

/// What retnet and gla share: the hidden size, expanded, is split over the heads.
linear_config read_split_heads(field_reader& fields, std::int64_t hidden_size, std::int64_t default_heads,
                               double default_expand_k, double default_expand_v) {
  linear_config out;
  out.state_heads = out.query_heads = fields.size("num_heads", default_heads);
  out.key_heads = out.value_heads = fields.optional_size("num_kv_heads").value_or(out.state_heads);
  require_divisor(fields, "num_kv_heads", out.key_heads, out.state_heads);
  auto const key_size = read_expanded(fields, "expand_k", default_expand_k, hidden_size);
  auto const value_size = read_expanded(fields, "expand_v", default_expand_v, hidden_size);
  require_divisor(fields, "num_heads", out.state_heads, key_size);
  require_divisor(fields, "num_heads", out.state_heads, value_size);
  out.key_dim = key_size / out.state_heads;
  out.value_dim = value_size / out.state_heads;
  out.output_gate = fields.flag("use_output_gate", true);
  out.norm_weight = fields.flag("elementwise_affine", true);
  fields.require("feature_map", nullptr);
  fields.require("use_short_conv", false);
  fields.find("conv_size");  // the length of convolutions that are off
  return out;
}

linear_config read_retnet(field_reader& fields, std::int64_t hidden_size) {
  auto out = read_split_heads(fields, hidden_size, 8, 1.0, 2.0);
  if (out.key_dim % 2 != 0) fields.refuse("num_heads", out.state_heads, "an even key dimension per head, for rotary");
  return out;
}

linear_config read_gla(field_reader& fields, std::int64_t hidden_size) {
  auto out = read_split_heads(fields, hidden_size, 4, 0.5, 1.0);
  fields.require("use_gk", true);
  fields.require("use_gv", false);
  if (fields.find_value("clamp_min") != nullptr) {
    out.clamp_min = fields.number("clamp_min", 0);
    if (*out.clamp_min > 0) fields.refuse("clamp_min", *out.clamp_min, "null or a number of at most 0");
  }
  return out;
}

linear_config read_gated_deltanet(field_reader& fields) {
  linear_config out;
  out.query_heads = out.key_heads = fields.size("num_heads", 6);
  out.state_heads = out.value_heads = fields.optional_size("num_v_heads").value_or(out.key_heads);
  if (out.value_heads % out.key_heads != 0) {
    fields.refuse("num_v_heads", out.value_heads, "a multiple of num_heads, " + std::to_string(out.key_heads));
  }
  out.key_dim = fields.size("head_dim", 256);
  out.value_dim = read_expanded(fields, "expand_v", 2.0, out.key_dim);
  out.output_gate = fields.flag("use_gate", true);
  out.negative_eigenvalues = fields.flag("allow_neg_eigval", false);
  auto const conv_size = fields.size("conv_size", 4);
  out.conv_size = fields.flag("use_short_conv", true) ? conv_size : 0;
  return out;
}

linear_config read_linear(field_reader& fields, model_family family, std::int64_t hidden_size) {
  switch (family) {
    case model_family::retnet: return read_retnet(fields, hidden_size);
    case model_family::gla: return read_gla(fields, hidden_size);
    case model_family::gated_deltanet: break;
  }
  return read_gated_deltanet(fields);
}

std::vector<std::int64_t> read_layer_list(field_reader& fields, std::int64_t layers) {
  auto const* list = fields.find("layers");
  if (list == nullptr) fields.refuse("layers", "nothing", "an array of layer indices");
  if (!list->is_array()) fields.refuse("layers", shown(*list), "an array of layer indices");
  std::set<std::int64_t> indices;
  for (auto const& item : *list) {
    if (!indices.insert(fields.as_size("layers", item, 0, layers - 1)).second) {
      fields.refuse("layers", shown(item) + " twice", "each index once");
    }
  }
  return {indices.begin(), indices.end()};
}

attention_config read_attention(json const& object, std::string const& source, model_config const& model) {
  field_reader fields(object, source, "attn.");
  attention_config out;
  out.layers = read_layer_list(fields, model.layers);
  if (fields.find("num_heads") == nullptr) fields.refuse("num_heads", "nothing", "the number of query heads");
  out.heads = fields.size("num_heads", 0);
  require_divisor(fields, "num_heads", out.heads, model.hidden_size);
  out.head_dim = model.hidden_size / out.heads;
  if (out.head_dim % 2 != 0) fields.refuse("num_heads", out.heads, "an even dimension per head, for rotary");
  out.kv_heads = fields.optional_size("num_kv_heads").value_or(out.heads);
  require_divisor(fields, "num_kv_heads", out.kv_heads, out.heads);
  out.qkv_bias = fields.flag("qkv_bias", false);
  out.rope_theta = fields.positive("rope_theta", 10000);
  fields.require("window_size", nullptr);
  fields.finish("hybrid attention");
  return out;
}

void require_supported_activation(field_reader& fields) {
  auto const* value = fields.find("hidden_act");
  if (value != nullptr && *value != "swish" && *value != "silu") {
    fields.refuse("hidden_act", shown(*value), "'swish' or 'silu'");
  }
}

model_config read_model(field_reader& fields, std::string const& source) {
  model_config out;
  out.family = read_family(fields);
  out.vocab_size = fields.size("vocab_size", 32000);
  out.hidden_size = fields.size("hidden_size", 2048);
  out.layers = fields.size("num_hidden_layers", out.family == model_family::gated_deltanet ? 21 : 24, most_layers);
  out.intermediate_size = read_intermediate_size(fields, out.hidden_size, out.family == model_family::retnet ? 2 : 4);
  out.max_position_embeddings = fields.size("max_position_embeddings", 2048);
  out.norm_eps = fields.positive_float("norm_eps", 1e-6);
  out.tie_word_embeddings = fields.flag("tie_word_embeddings", false);
  out.linear = read_linear(fields, out.family, out.hidden_size);
  out.linear.fused_norm = fields.flag("fuse_norm", true);
  if (auto const* attention = fields.find_value("attn")) {
    if (!attention->is_object()) fields.refuse("attn", shown(*attention), "null or an object");
    out.attention = read_attention(*attention, source, out);
  }
  require_supported_activation(fields);
  fields.require("attnres_block_size", nullptr);
  return out;
}

}  // namespace

std::string_view name_of(model_family family) { return families[static_cast<std::size_t>(family)].first; }

bool is_attention_layer(model_config const& config, std::int64_t layer) {
  return std::binary_search(config.attention.layers.begin(), config.attention.layers.end(), layer);
}

model_config parse_config(std::string_view json_text, std::string const& source) {
  auto const object = parse_json_object(json_text, source);
  field_reader fields(object, source, "");
  auto const out = read_model(fields, source);
  for (auto const* name : no_effect) fields.find(name);
  fields.finish(name_of(out.family));
  return out;
}

std::string identity_text(model_config const& config) {
  auto const& linear = config.linear;
  auto const& attention = config.attention;
  std::ostringstream out;
  out << std::hexfloat << std::boolalpha << name_of(config.family) << " vocab " << config.vocab_size << " hidden "
      << config.hidden_size << " layers " << config.layers << " intermediate " << config.intermediate_size
      << " positions " << config.max_position_embeddings << " eps " << config.norm_eps << " tied "
      << config.tie_word_embeddings << " | linear heads " << linear.state_heads << ' ' << linear.query_heads << ' '
      << linear.key_heads << ' ' << linear.value_heads << " dims " << linear.key_dim << ' ' << linear.value_dim
      << " gate " << linear.output_gate << " weight " << linear.norm_weight << " fused " << linear.fused_norm
      << " conv " << linear.conv_size << " negative " << linear.negative_eigenvalues << " clamp ";
  if (linear.clamp_min) out << *linear.clamp_min;
  out << " | attention heads " << attention.heads << ' ' << attention.kv_heads << " dim " << attention.head_dim
      << " bias " << attention.qkv_bias << " theta " << attention.rope_theta << " layers";
  for (auto const layer : attention.layers) out << ' ' << layer;
  return out.str();
}

}  // namespace hypic_engine
