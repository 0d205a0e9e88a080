// SPDX-License-Identifier: Apache-2.0
#include "engine/model.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/error.hpp"
#include "engine/status.hpp"
#include "engine/workers.hpp"
#include "hypic/core/status.hpp"
#include "hypic/family/gates.hpp"
#include "hypic/segment/short_convolution.hpp"
#include "hypic/store/sha256.hpp"

namespace hypic_engine {
namespace {

hypic::rotary_embedding make_rotary(std::int64_t dim, double base) {
  return {take(hypic::plain_frequencies(dim, base), "rotary frequencies"), hypic::rotary_pairing::rotate_half};
}

hypic::family_id family_of(model_family family) {
  switch (family) {
    case model_family::gla: return hypic::family_id::gla;
    case model_family::gated_deltanet: return hypic::family_id::gated_deltanet;
    case model_family::retnet: break;
  }
  return hypic::family_id::retnet;
}

hypic::linear_layer linear_layout(model_config const& config) {
  auto const& linear = config.linear;
  hypic::linear_layer layer;
  layer.family = family_of(config.family);
  layer.dims = {.key_heads = static_cast<std::int32_t>(linear.query_heads),
                .value_heads = static_cast<std::int32_t>(linear.state_heads),
                .key_dim = static_cast<std::int32_t>(linear.key_dim),
                .value_dim = static_cast<std::int32_t>(linear.value_dim)};
  layer.options.q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(linear.key_dim)));
  if (config.family == model_family::retnet) layer.rotary = make_rotary(linear.key_dim, retnet_rope_theta);
  if (config.family == model_family::gated_deltanet) {
    layer.options.l2_normalize = true;
    layer.options.l2_epsilon = static_cast<float>(delta_normalize_epsilon);
    layer.tail_rows = static_cast<std::int32_t>(std::max<std::int64_t>(linear.conv_size - 1, 0));
    if (layer.tail_rows > 0)
      layer.tail_channels = static_cast<std::int32_t>((linear.query_heads + linear.key_heads) * linear.key_dim +
                                                      linear.value_heads * linear.value_dim);
  }
  return layer;
}

hypic::attention_layer attention_layout(model_config const& config) {
  auto const& attention = config.attention;
  auto const dim = static_cast<std::int32_t>(attention.head_dim);
  return {.query_heads = static_cast<std::int32_t>(attention.heads),
          .kv_heads = static_cast<std::int32_t>(attention.kv_heads),
          .key_dim = dim,
          .value_dim = dim,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))),
          .rotary = make_rotary(dim, attention.rope_theta)};
}

hypic::model_layout make_layout(model_config const& config, std::int32_t head_rows) {
  hypic::model_layout layout;
  for (std::int64_t l = 0; l < config.layers; ++l) {
    if (is_attention_layer(config, l)) {
      layout.layers.emplace_back(attention_layout(config));
    } else {
      layout.layers.emplace_back(linear_layout(config));
    }
  }
  layout.head_rows = head_rows;
  layout.max_positions = config.max_position_embeddings;
  check(validate(layout), "the model's layout");
  return layout;
}

std::string make_fingerprint(checkpoint const& loaded, hypic::model_layout const& layout) {
  auto named = identity_text(loaded.config) + "\n" + blas_name();
  for_each_tensor(loaded, [&](std::string_view name, std::span<float const> values) {
    auto const content = take(hypic::sha256({std::as_bytes(values)}), "a weight's digest");
    named.append("\n").append(name).append(" ").append(hypic::to_hex(content));
  });
  return take(hypic::model_fingerprint(layout, named), "the model's fingerprint");
}

std::vector<float> retention_decays(std::int64_t heads) {
  std::vector<float> decays;
  for (std::int64_t h = 0; h < heads; ++h)
    decays.push_back(static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(h)))));
  return decays;
}

std::vector<float> join(matrix const& q, matrix const& k, matrix const& v) {
  auto joined = q.data;
  joined.insert(joined.end(), k.data.begin(), k.data.end());
  joined.insert(joined.end(), v.data.begin(), v.data.end());
  return joined;
}

using rows3_in = hypic::tensor_view<float const, 3>;

/// A copy of [rows, from_heads * dim] in which each head stands heads / from_heads times.
buffer repeat_heads(rows_in rows, std::int64_t from_heads, std::int64_t heads) {
  auto const dim = rows.extent[1] / from_heads;
  buffer repeated(rows.extent[0], heads * dim);
  auto const from = split_heads(rows, from_heads);
  auto const to = split_heads(repeated.view(), heads);
  for (std::int64_t row = 0; row < rows.extent[0]; ++row)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t d = 0; d < dim; ++d) to(row, head, d) = from(row, head / (heads / from_heads), d);
  return repeated;
}

void add_bias(rows_out rows, std::span<float const> bias) {
  if (bias.empty()) return;
  for (std::int64_t row = 0; row < rows.extent[0]; ++row)
    for (std::int64_t c = 0; c < rows.extent[1]; ++c) rows(row, c) += bias[static_cast<std::size_t>(c)];
}

/// values *= silu(in gate^T).
void multiply_by_gate(rows_in in, matrix const& gate, rows_out values) {
  buffer gates(in.extent[0], gate.rows);
  multiply(in, gate, gates.view());
  for (std::int64_t row = 0; row < values.extent[0]; ++row)
    for (std::int64_t c = 0; c < values.extent[1]; ++c) values(row, c) *= silu(gates.view()(row, c));
}

/// sum += in weights^T.
void add_product(rows_in in, matrix const& weights, rows_out sum) {
  buffer product(in.extent[0], weights.rows);
  multiply(in, weights, product.view());
  for (std::int64_t row = 0; row < sum.extent[0]; ++row)
    for (std::int64_t c = 0; c < sum.extent[1]; ++c) sum(row, c) += product.view()(row, c);
}

/// Log gates of gated linear attention, one a key channel.
void gla_gates(linear_config const& config, linear_weights const& weights, rows_in in, rows_out gates) {
  buffer narrow(in.extent[0], gla_gate_rank);
  multiply(in, weights.gk_down, narrow.view());
  multiply(narrow.view(), weights.gk_up, gates);
  add_bias(gates, weights.gk_bias);
  auto const divisor = static_cast<float>(gla_gate_divisor);
  for (std::int64_t row = 0; row < gates.extent[0]; ++row) {
    for (std::int64_t c = 0; c < gates.extent[1]; ++c) {
      auto& gate = gates(row, c);
      gate = hypic::log_sigmoid(gate) / divisor;
      if (config.clamp_min) gate = std::max(gate, static_cast<float>(*config.clamp_min));
    }
  }
}

/// Log gates and update strengths of Gated DeltaNet, one a head.
void delta_gates(linear_config const& config, linear_weights const& weights, rows_in in, rows_out gates,
                 rows_out beta) {
  multiply(in, weights.a, gates);
  multiply(in, weights.b, beta);
  for (std::int64_t row = 0; row < gates.extent[0]; ++row) {
    for (std::int64_t h = 0; h < gates.extent[1]; ++h) {
      auto const i = static_cast<std::size_t>(h);
      gates(row, h) = hypic::softplus_log_gate(weights.a_log[i], gates(row, h) + weights.dt_bias[i]);
      beta(row, h) = sigmoid(beta(row, h)) * (config.negative_eigenvalues ? 2.0f : 1.0f);
    }
  }
}

}  // namespace

struct model::pass {
  forward_rows const& rows;
  std::vector<row_block> blocks;
  rotary_table linear_rotary;
  rotary_table attention_rotary;
  int threads = 1;
  hypic::observer* watch = nullptr;

  std::int64_t count() const noexcept { return static_cast<std::int64_t>(rows.tokens.size()); }
  template <class Fn>
  void for_each_block(Fn&& fn) const {
    for_each_task(threads, static_cast<std::int64_t>(blocks.size()),
                  [&](std::int64_t i) { fn(blocks[static_cast<std::size_t>(i)]); });
  }
};

model::model(checkpoint loaded, std::int32_t head_rows)
    : checkpoint_(std::move(loaded)),
      layout_(make_layout(checkpoint_.config, head_rows)),
      fingerprint_(make_fingerprint(checkpoint_, layout_)) {
  use_one_blas_thread();
  if (config().family == model_family::retnet) retention_ = retention_decays(config().linear.state_heads);
  for (auto const& layer : layout_.layers) {
    if (auto const* linear = std::get_if<hypic::linear_layer>(&layer)) {
      linear_rotary_ = linear->rotary;
    } else {
      attention_rotary_ = std::get<hypic::attention_layer>(layer).rotary;
    }
  }
  for (auto const& layer : checkpoint_.weights.layers) {
    auto const* linear = std::get_if<linear_weights>(&layer.mixer);
    taps_.push_back(linear == nullptr ? std::vector<float>{} : join(linear->q_conv, linear->k_conv, linear->v_conv));
  }
}

buffer model::forward(forward_rows const& rows, token_mixer& mixer, int threads, hypic::observer* watch) const {
  pass at{rows, cut_blocks(rows.runs), {}, {}, threads, watch};
  if (linear_rotary_) at.linear_rotary = rotary_table(*linear_rotary_, rows.positions);
  if (attention_rotary_) at.attention_rotary = rotary_table(*attention_rotary_, rows.positions);
  buffer hidden(at.count(), config().hidden_size);
  auto const& embeddings = checkpoint_.weights.embeddings;
  for (std::int64_t row = 0; row < at.count(); ++row) {
    auto const token = rows.tokens[static_cast<std::size_t>(row)];
    if (token < 0 || token >= embeddings.rows)
      fail("token ", token, " at row ", row, ", expected 0 to ", embeddings.rows - 1);
    std::copy_n(embeddings.data.begin() + token * embeddings.cols, embeddings.cols, &hidden.view()(row, 0));
  }
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(layout_.layers.size()); ++l) {
    if (is_attention_layer(config(), l)) {
      attention_mix(at, l, hidden, mixer);
    } else {
      linear_mix(at, l, hidden, mixer);
    }
    feed_forward(at, checkpoint_.weights.layers[static_cast<std::size_t>(l)], hidden);
    mixer.after_layer(l, hidden.view());
  }
  return hidden;
}

void model::linear_mix(pass const& at, std::int32_t layer, buffer& hidden, token_mixer& mixer) const {
  auto const& shape = config().linear;
  auto const& weights = std::get<linear_weights>(layer_weights_of(layer).mixer);
  auto const& norm = layer_weights_of(layer).attn_norm;
  auto const rows = at.count();
  auto const q_width = shape.query_heads * shape.key_dim;
  auto const k_width = shape.key_heads * shape.key_dim;
  auto const v_width = shape.value_heads * shape.value_dim;
  bool const delta = config().family == model_family::gated_deltanet;
  bool const per_channel = config().family == model_family::gla;

  buffer normed(rows, config().hidden_size);
  buffer raw(rows, q_width + k_width + v_width);  // q, k, v of a row side by side
  buffer gates(rows, delta ? shape.state_heads : per_channel ? k_width : 0);
  buffer beta(rows, delta ? shape.state_heads : 0);
  at.for_each_block([&](row_block b) {
    auto const x = normed.view().rows(b.first, b.rows);
    rms_norm(hidden.view().rows(b.first, b.rows), norm, config().norm_eps, x);
    multiply(x, weights.q, raw.columns(0, q_width).rows(b.first, b.rows));
    multiply(x, weights.k, raw.columns(q_width, k_width).rows(b.first, b.rows));
    multiply(x, weights.v, raw.columns(q_width + k_width, v_width).rows(b.first, b.rows));
    auto const gate_rows = gates.view().rows(b.first, b.rows);
    if (delta) delta_gates(shape, weights, x, gate_rows, beta.view().rows(b.first, b.rows));
    if (per_channel) gla_gates(shape, weights, x, gate_rows);
    if (!linear_rotary_) return;
    at.linear_rotary.turn(split_heads(raw.columns(0, q_width).rows(b.first, b.rows), shape.query_heads), b.first);
    at.linear_rotary.turn(split_heads(raw.columns(q_width, k_width).rows(b.first, b.rows), shape.key_heads), b.first);
  });
  if (delta) raw = convolve(at, layer, raw, mixer);

  auto const k = repeat_heads(raw.columns(q_width, k_width), shape.key_heads, shape.query_heads);
  auto const v = repeat_heads(raw.columns(q_width + k_width, v_width), shape.value_heads, shape.state_heads);
  if (per_channel) gates = repeat_heads(gates.view(), shape.key_heads, shape.state_heads);
  hypic::query_rows_view in;
  in.q = split_heads(raw.columns(0, q_width), shape.query_heads);
  in.rows.k = split_heads(k.view(), shape.query_heads);
  in.rows.v = split_heads(v.view(), shape.state_heads);
  in.rows.gates = retention_.empty() ? split_heads(gates.view(), shape.state_heads)
                                     : rows3_in{retention_.data(), {rows, shape.state_heads, 1}, {0, 1, 1}};
  if (delta) in.rows.beta = beta.view();
  buffer o(rows, shape.state_heads * shape.value_dim);
  mixer.linear(layer, in, split_heads(o.view(), shape.state_heads));

  at.for_each_block([&](row_block b) {
    auto const out = o.view().rows(b.first, b.rows);
    auto const heads = hypic::dense_view(out.data, b.rows * shape.state_heads, shape.value_dim);
    rms_norm(heads, weights.norm, config().norm_eps, heads);
    if (shape.output_gate) multiply_by_gate(normed.view().rows(b.first, b.rows), weights.g, out);
    add_product(out, weights.o, hidden.view().rows(b.first, b.rows));
  });
}

buffer model::convolve(pass const& at, std::int32_t layer, buffer const& raw, token_mixer& mixer) const {
  auto const& shape = std::get<hypic::linear_layer>(layout_.layers[static_cast<std::size_t>(layer)]);
  auto const runs = static_cast<std::int64_t>(at.rows.runs.size());
  auto const length = config().linear.conv_size;
  buffer out(raw.rows(), raw.width());
  if (length == 0) {
    for (std::int64_t row = 0; row < raw.rows(); ++row)
      for (std::int64_t c = 0; c < raw.width(); ++c) out.view()(row, c) = silu(raw.view()(row, c));
    return out;
  }
  std::vector<float> before(static_cast<std::size_t>(runs * shape.tail_rows * raw.width()));
  auto const tails = hypic::dense_view(before.data(), runs, shape.tail_rows, raw.width());
  if (shape.tail_rows > 0) mixer.tails(layer, raw.view(), tails);
  std::vector<hypic::convolution_run> convolutions;
  for (std::int64_t i = 0; i < runs; ++i) {
    auto const& run = at.rows.runs[static_cast<std::size_t>(i)];
    convolutions.push_back({run.first, run.rows, i});
  }
  auto const taps = hypic::dense_view(taps_[static_cast<std::size_t>(layer)].data(), raw.width(), length);
  check(
      short_convolution(raw.view(), taps, tails, convolutions, out.view(), {.threads = at.threads, .watch = at.watch}),
      "the short convolution");
  return out;
}

void model::attention_mix(pass const& at, std::int32_t layer, buffer& hidden, token_mixer& mixer) const {
  auto const& shape = config().attention;
  auto const& weights = std::get<attention_weights>(layer_weights_of(layer).mixer);
  auto const& norm = layer_weights_of(layer).attn_norm;
  auto const rows = at.count();
  buffer q(rows, shape.heads * shape.head_dim);
  buffer k(rows, shape.kv_heads * shape.head_dim);
  buffer v(rows, shape.kv_heads * shape.head_dim);
  at.for_each_block([&](row_block b) {
    buffer x(b.rows, hidden.width());
    rms_norm(hidden.view().rows(b.first, b.rows), norm, config().norm_eps, x.view());
    auto const project = [&](matrix const& projection, std::vector<float> const& bias, buffer& to) {
      auto const out = to.view().rows(b.first, b.rows);
      multiply(x.view(), projection, out);
      add_bias(out, bias);
      return out;
    };
    at.attention_rotary.turn(split_heads(project(weights.q, weights.q_bias, q), shape.heads), b.first);
    at.attention_rotary.turn(split_heads(project(weights.k, weights.k_bias, k), shape.kv_heads), b.first);
    project(weights.v, weights.v_bias, v);
  });
  buffer o(rows, q.width());
  mixer.attention(layer, split_heads(q.view(), shape.heads), split_heads(k.view(), shape.kv_heads),
                  split_heads(v.view(), shape.kv_heads), split_heads(o.view(), shape.heads));
  at.for_each_block([&](row_block b) {
    add_product(o.view().rows(b.first, b.rows), weights.o, hidden.view().rows(b.first, b.rows));
  });
}

void model::feed_forward(pass const& at, layer_weights const& weights, buffer& hidden) const {
  at.for_each_block([&](row_block b) {
    auto const x = hidden.view().rows(b.first, b.rows);
    buffer normed(b.rows, hidden.width());
    rms_norm(x, weights.mlp_norm, config().norm_eps, normed.view());
    buffer up(b.rows, weights.mlp_up.rows);
    multiply(normed.view(), weights.mlp_up, up.view());
    multiply_by_gate(normed.view(), weights.mlp_gate, up.view());
    add_product(up.view(), weights.mlp_down, x);
  });
}

buffer model::logits(buffer const& hidden, row_block run, int threads) const {
  buffer out(run.rows, checkpoint_.output_matrix().rows);
  auto const blocks = cut_blocks(std::span(&run, 1));
  for_each_task(threads, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i) {
    auto const& block = blocks[static_cast<std::size_t>(i)];
    buffer normed(block.rows, hidden.width());
    rms_norm(hidden.view().rows(block.first, block.rows), checkpoint_.weights.norm, config().norm_eps, normed.view());
    multiply(normed.view(), checkpoint_.output_matrix(), out.view().rows(block.first - run.first, block.rows));
  });
  if (!std::ranges::all_of(out.data(), [](float logit) { return std::isfinite(logit); }))
    fail("the logits: found one that is not finite; expected weights under which fp32 does not overflow");
  return out;
}

}  // namespace hypic_engine
