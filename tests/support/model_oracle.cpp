// SPDX-License-Identifier: Apache-2.0
#include "support/model_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

namespace oracle {
namespace {

using hypic_engine::attention_weights;
using hypic_engine::checkpoint;
using hypic_engine::linear_weights;
using hypic_engine::matrix;
using hypic_engine::model_config;
using hypic_engine::model_family;
using rows = std::vector<row>;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double swish(double x) { return x * logistic(x); }
double log_logistic(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }
double soft_plus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

/// y = W x of each row. Walks columns outside, so that a compiler may take several outputs at once.
rows project(matrix const& weights, rows const& in) {
  auto const outputs = size(weights.rows);
  auto const inputs = size(weights.cols);
  std::vector<double> columns(outputs * inputs);
  for (std::size_t r = 0; r < outputs; ++r)
    for (std::size_t c = 0; c < inputs; ++c)
      columns[c * outputs + r] = static_cast<double>(weights.data[r * inputs + c]);
  rows out;
  for (auto const& x : in) {
    row y(outputs);
    for (std::size_t c = 0; c < inputs; ++c)
      for (std::size_t r = 0; r < outputs; ++r) y[r] += columns[c * outputs + r] * x[c];
    out.push_back(std::move(y));
  }
  return out;
}

void add_bias(rows& to, std::vector<float> const& bias) {
  if (bias.empty()) return;
  for (auto& x : to)
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += static_cast<double>(bias[i]);
}

void add(rows& to, rows const& what) {
  for (std::size_t t = 0; t < to.size(); ++t)
    for (std::size_t i = 0; i < to[t].size(); ++i) to[t][i] += what[t][i];
}

/// Norms each `width` values of a row by themselves, with one weight for all of them.
row normed(row x, std::size_t width, std::vector<float> const& weight, double epsilon) {
  for (std::size_t first = 0; first < x.size(); first += width) {
    double squares = 0.0;
    for (std::size_t i = 0; i < width; ++i) squares += x[first + i] * x[first + i];
    auto const scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::size_t i = 0; i < width; ++i)
      x[first + i] *= scale * (weight.empty() ? 1.0 : static_cast<double>(weight[i]));
  }
  return x;
}

rows normed_rows(rows const& in, std::vector<float> const& weight, double epsilon) {
  rows out;
  for (auto const& x : in) out.push_back(normed(x, x.size(), weight, epsilon));
  return out;
}

/// Head `head` of a row of heads that are `dim` wide.
row head_of(row const& all, std::size_t head, std::size_t dim) {
  auto const first = all.begin() + static_cast<std::ptrdiff_t>(head * dim);
  return {first, first + static_cast<std::ptrdiff_t>(dim)};
}

/// Turns the pairs (i, i + dim / 2) of every head to a position.
void turn_heads(row& heads, std::size_t dim, double base, std::size_t position) {
  for (std::size_t first = 0; first < heads.size(); first += dim) {
    for (std::size_t i = 0; i < dim / 2; ++i) {
      auto const frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      auto const angle = static_cast<double>(position) * frequency;
      auto& left = heads[first + i];
      auto& right = heads[first + i + dim / 2];
      auto const turned = left * std::cos(angle) - right * std::sin(angle);
      right = right * std::cos(angle) + left * std::sin(angle);
      left = turned;
    }
  }
}

/// silu of the causal depthwise convolution; silu alone without one.
rows convolved(rows const& in, matrix const& weights) {
  rows out = in;
  auto const length = size(weights.cols);
  for (std::size_t t = 0; t < in.size(); ++t) {
    for (std::size_t c = 0; c < in[t].size(); ++c) {
      double sum = length == 0 ? in[t][c] : 0.0;
      for (std::size_t back = 0; back < std::min(length, t + 1); ++back)
        sum += static_cast<double>(weights.data[c * length + length - 1 - back]) * in[t - back][c];
      out[t][c] = swish(sum);
    }
  }
  return out;
}

// ---- Linear layers ----

/// What one state head reads at one token.
struct step {
  row q;
  row k;
  row v;
  row decay;  // one factor a key channel
  double strength = 1.0;
  bool delta_rule = false;
};

/// S = Diag(decay) S, then the delta rule's or the plain update; returns S^T q.
row advance(row& state, step const& at) {
  auto const key_dim = at.k.size();
  auto const value_dim = at.v.size();
  for (std::size_t i = 0; i < key_dim; ++i)
    for (std::size_t j = 0; j < value_dim; ++j) state[i * value_dim + j] *= at.decay[i];
  row update = at.v;
  if (at.delta_rule)
    for (std::size_t i = 0; i < key_dim; ++i)
      for (std::size_t j = 0; j < value_dim; ++j) update[j] -= at.k[i] * state[i * value_dim + j];
  row out(value_dim);
  for (std::size_t i = 0; i < key_dim; ++i) {
    for (std::size_t j = 0; j < value_dim; ++j) {
      state[i * value_dim + j] += at.strength * at.k[i] * update[j];
      out[j] += at.q[i] * state[i * value_dim + j];
    }
  }
  return out;
}

/// The rows that a linear layer's heads share.
struct linear_inputs {
  rows q;
  rows k;
  rows v;
  rows gates;  // retnet: none; gla: log decays, a key channel each; gated_deltanet: decays, a state head each
  rows beta;
};

rows gla_gates(model_config const& config, linear_weights const& weights, rows const& x) {
  auto gates = project(weights.gk_up, project(weights.gk_down, x));
  add_bias(gates, weights.gk_bias);
  for (auto& at : gates) {
    for (auto& gate : at) {
      gate = log_logistic(gate) / 16.0;
      if (config.linear.clamp_min) gate = std::max(gate, *config.linear.clamp_min);
    }
  }
  return gates;
}

/// exp(-exp(A_log) softplus(a + dt_bias)).
rows delta_decays(linear_weights const& weights, rows const& x) {
  auto decays = project(weights.a, x);
  for (auto& at : decays)
    for (std::size_t h = 0; h < at.size(); ++h)
      at[h] = std::exp(-std::exp(static_cast<double>(weights.a_log[h])) *
                       soft_plus(at[h] + static_cast<double>(weights.dt_bias[h])));
  return decays;
}

linear_inputs inputs_of(model_config const& config, linear_weights const& weights, rows const& x) {
  linear_inputs in{project(weights.q, x), project(weights.k, x), project(weights.v, x), {}, {}};
  switch (config.family) {
    case model_family::retnet:
      for (std::size_t t = 0; t < x.size(); ++t) {
        turn_heads(in.q[t], size(config.linear.key_dim), 10000.0, t);
        turn_heads(in.k[t], size(config.linear.key_dim), 10000.0, t);
      }
      break;
    case model_family::gla: in.gates = gla_gates(config, weights, x); break;
    case model_family::gated_deltanet:
      in.q = convolved(in.q, weights.q_conv);
      in.k = convolved(in.k, weights.k_conv);
      in.v = convolved(in.v, weights.v_conv);
      in.gates = delta_decays(weights, x);
      in.beta = project(weights.b, x);
      for (auto& at : in.beta)
        for (auto& b : at) b = logistic(b) * (config.linear.negative_eigenvalues ? 2.0 : 1.0);
      break;
  }
  return in;
}

row unit_length(row x) {
  double squares = 0.0;
  for (auto const value : x) squares += value * value;
  for (auto& value : x) value /= std::sqrt(squares + 1e-6);
  return x;
}

step step_of(model_config const& config, linear_inputs const& in, std::size_t t, std::size_t head) {
  auto const& c = config.linear;
  auto const shared = [&](std::int64_t heads) { return head / size(c.state_heads / heads); };
  auto const key_dim = size(c.key_dim);
  step at{.q = head_of(in.q[t], shared(c.query_heads), key_dim),
          .k = head_of(in.k[t], shared(c.key_heads), key_dim),
          .v = head_of(in.v[t], shared(c.value_heads), size(c.value_dim)),
          .decay = row(key_dim)};
  switch (config.family) {
    case model_family::retnet:
      std::fill(at.decay.begin(), at.decay.end(), 1.0 - std::exp2(-5.0 - static_cast<double>(head)));
      break;
    case model_family::gla:
      at.decay = head_of(in.gates[t], shared(c.key_heads), key_dim);
      for (auto& decay : at.decay) decay = std::exp(decay);
      break;
    case model_family::gated_deltanet:
      std::fill(at.decay.begin(), at.decay.end(), in.gates[t][head]);
      at.q = unit_length(at.q);
      at.k = unit_length(at.k);
      at.strength = in.beta[t][head];
      at.delta_rule = true;
      break;
  }
  for (auto& q : at.q) q /= std::sqrt(static_cast<double>(key_dim));
  return at;
}

rows linear_layer(model_config const& config, linear_weights const& weights, rows const& x, std::vector<row>& states) {
  auto const& c = config.linear;
  auto const in = inputs_of(config, weights, x);
  states.assign(size(c.state_heads), row(size(c.key_dim * c.value_dim)));
  rows out;
  for (std::size_t t = 0; t < x.size(); ++t) {
    row o;
    for (std::size_t head = 0; head < states.size(); ++head) {
      auto const part = advance(states[head], step_of(config, in, t, head));
      o.insert(o.end(), part.begin(), part.end());
    }
    out.push_back(normed(std::move(o), size(c.value_dim), weights.norm, config.norm_eps));
  }
  if (c.output_gate) {
    auto const gate = project(weights.g, x);
    for (std::size_t t = 0; t < out.size(); ++t)
      for (std::size_t i = 0; i < out[t].size(); ++i) out[t][i] *= swish(gate[t][i]);
  }
  return project(weights.o, out);
}

// ---- Attention layers ----

/// One query head at the last of `k.size()` positions.
row attend(row const& q, rows const& k, rows const& v, std::size_t positions, std::size_t kv_head) {
  auto const dim = q.size();
  row weights(positions);
  for (std::size_t s = 0; s < positions; ++s) {
    for (std::size_t i = 0; i < dim; ++i) weights[s] += q[i] * k[s][kv_head * dim + i];
    weights[s] /= std::sqrt(static_cast<double>(dim));
  }
  auto const most = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  row out(dim);
  for (std::size_t s = 0; s < positions; ++s) {
    auto const weight = std::exp(weights[s] - most);
    sum += weight;
    for (std::size_t i = 0; i < dim; ++i) out[i] += weight * v[s][kv_head * dim + i];
  }
  for (auto& value : out) value /= sum;
  return out;
}

rows attention_layer(model_config const& config, attention_weights const& weights, rows const& x) {
  auto const& c = config.attention;
  auto const dim = size(c.head_dim);
  auto q = project(weights.q, x);
  auto k = project(weights.k, x);
  auto v = project(weights.v, x);
  add_bias(q, weights.q_bias);
  add_bias(k, weights.k_bias);
  add_bias(v, weights.v_bias);
  rows out;
  for (std::size_t t = 0; t < x.size(); ++t) {
    turn_heads(q[t], dim, c.rope_theta, t);
    turn_heads(k[t], dim, c.rope_theta, t);
    row o;
    for (std::size_t head = 0; head < size(c.heads); ++head) {
      auto const part = attend(head_of(q[t], head, dim), k, v, t + 1, head / size(c.heads / c.kv_heads));
      o.insert(o.end(), part.begin(), part.end());
    }
    out.push_back(std::move(o));
  }
  return project(weights.o, out);
}

// ---- The model ----

rows feed_forward(hypic_engine::layer_weights const& weights, rows const& x) {
  auto up = project(weights.mlp_up, x);
  auto const gate = project(weights.mlp_gate, x);
  for (std::size_t t = 0; t < up.size(); ++t)
    for (std::size_t i = 0; i < up[t].size(); ++i) up[t][i] *= swish(gate[t][i]);
  return project(weights.mlp_down, up);
}

rows embedded(matrix const& embeddings, std::vector<std::int32_t> const& tokens) {
  rows out;
  for (auto const token : tokens) {
    if (token < 0 || token >= embeddings.rows) throw std::out_of_range("a token outside of the vocabulary");
    auto const first = embeddings.data.begin() + token * embeddings.cols;
    out.emplace_back(first, first + embeddings.cols);
  }
  return out;
}

}  // namespace

model_run forward(checkpoint const& model, std::vector<std::int32_t> const& tokens) {
  auto const& config = model.config;
  model_run run;
  auto hidden = embedded(model.weights.embeddings, tokens);
  for (auto const& layer : model.weights.layers) {
    auto const x = normed_rows(hidden, layer.attn_norm, config.norm_eps);
    auto& states = run.states.emplace_back();
    auto const* linear = std::get_if<linear_weights>(&layer.mixer);
    add(hidden, linear != nullptr ? linear_layer(config, *linear, x, states)
                                  : attention_layer(config, std::get<attention_weights>(layer.mixer), x));
    add(hidden, feed_forward(layer, normed_rows(hidden, layer.mlp_norm, config.norm_eps)));
  }
  auto const& output = config.tie_word_embeddings ? model.weights.embeddings : model.weights.lm_head;
  run.logits = project(output, normed_rows(hidden, model.weights.norm, config.norm_eps));
  return run;
}

}  // namespace oracle
