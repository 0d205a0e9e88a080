// SPDX-License-Identifier: Apache-2.0
#include "support/layer_data.hpp"

#include <sstream>

namespace hypic::test {
namespace {

struct traits {
  oracle::recurrence law;
  bool gate_per_channel;
  bool delta;
};

traits traits_of(family_id family) {
  switch (family) {
    case family_id::gla: return {oracle::recurrence::diagonal_decay, true, false};
    case family_id::gated_deltanet: return {oracle::recurrence::delta_rule, false, true};
    case family_id::kda: return {oracle::recurrence::diagonal_delta_rule, true, true};
    case family_id::retnet: break;
  }
  return {oracle::recurrence::scalar_decay, false, false};
}

float to_space(double log_decay, gate_space space) {
  switch (space) {
    case gate_space::log2: return static_cast<float>(log_decay / std::log(2.0));
    case gate_space::linear: return static_cast<float>(std::exp(log_decay));
    case gate_space::natural_log: break;
  }
  return static_cast<float>(log_decay);
}

double from_space(float gate, gate_space space) {
  auto const value = static_cast<double>(gate);
  switch (space) {
    case gate_space::log2: return value * std::log(2.0);
    case gate_space::linear: return std::log(value);
    case gate_space::natural_log: break;
  }
  return value;
}

double draw_gate(gate_kind kind, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  auto const mixed = [&] { return -std::log1p(std::exp(-(4.0 + normal(random)))); };
  switch (kind) {
    case gate_kind::zero: return 0.0;
    case gate_kind::slow: return -1e-3 * (0.5 + uniform(random));
    case gate_kind::fast: return -0.5 - 7.5 * uniform(random);
    case gate_kind::steep: return -1000.0;
    case gate_kind::resets: {
      double const choice = uniform(random);
      if (choice < 0.03) return -std::numeric_limits<double>::infinity();
      if (choice < 0.06) return -1000.0;
      return mixed();
    }
    case gate_kind::mixed: break;
  }
  return mixed();
}

double draw_beta(beta_kind kind, std::mt19937_64& random) {
  switch (kind) {
    case beta_kind::two: return 2.0;
    case beta_kind::one: return 1.0;
    case beta_kind::zero: return 0.0;
    case beta_kind::uniform: break;
  }
  return std::uniform_real_distribution<double>(0.0, 2.0)(random);
}

std::vector<double> draw_direction(std::int64_t size, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> x(to_index(size));
  for (double& value : x) value = normal(random);
  return oracle::normalized(std::move(x), 0.0);
}

void draw_keys(key_kind kind, tensor_view<float, 3> k, std::mt19937_64& random) {
  for (std::int64_t h = 0; h < k.extent[1]; ++h) {
    auto const common = draw_direction(k.extent[2], random);
    for (std::int64_t t = 0; t < k.extent[0]; ++t) {
      auto key = common;
      if (kind != key_kind::identical) {
        auto const own = draw_direction(k.extent[2], random);
        double const share = kind == key_kind::correlated ? 0.2 : 1.0;
        for (std::size_t i = 0; i < key.size(); ++i)
          key[i] = (kind == key_kind::random ? 0.0 : key[i]) + share * own[i];
        key = oracle::normalized(std::move(key), 0.0);
      }
      for (std::int64_t i = 0; i < k.extent[2]; ++i) k(t, h, i) = static_cast<float>(key[to_index(i)]);
    }
  }
}

std::vector<double> read(tensor_view<float const, 3> view, std::int64_t row, std::int64_t h) {
  std::vector<double> out(to_index(view.extent[2]));
  for (std::int64_t i = 0; i < view.extent[2]; ++i) out[to_index(i)] = static_cast<double>(view(row, h, i));
  return out;
}

void append(std::vector<float>& to, std::vector<float> const& from) { to.insert(to.end(), from.begin(), from.end()); }

double norm(std::vector<double> const& x) {
  double squares = 0.0;
  for (double const value : x) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

std::vector<float> summary_data::packed() const {
  auto all = operators.packed();
  append(all, end_states.packed());
  return all;
}

rows_data::rows_data(family_id family, state_dims const& dims, std::int64_t rows, layout how)
    : k({rows, dims.key_heads, dims.key_dim}, how),
      v({rows, dims.value_heads, dims.value_dim}, how),
      gates({rows, dims.value_heads, traits_of(family).gate_per_channel ? dims.key_dim : 1}, how),
      has_beta(traits_of(family).delta) {
  if (has_beta) beta = tensor<2>({rows, dims.value_heads}, how);
}

std::vector<float> rows_data::packed() const {
  auto all = k.packed();
  append(all, v.packed());
  append(all, gates.packed());
  if (has_beta) append(all, beta.packed());
  return all;
}

bool rows_data::gaps_intact() const {
  return k.gaps_intact() && v.gaps_intact() && gates.gaps_intact() && (!has_beta || beta.gaps_intact());
}

char const* name(family_id family) {
  switch (family) {
    case family_id::gla: return "gla";
    case family_id::gated_deltanet: return "gated_deltanet";
    case family_id::kda: return "kda";
    case family_id::retnet: break;
  }
  return "retnet";
}

char const* name(key_kind kind) {
  switch (kind) {
    case key_kind::correlated: return "correlated";
    case key_kind::identical: return "identical";
    case key_kind::random: break;
  }
  return "random";
}

char const* name(gate_kind kind) {
  switch (kind) {
    case gate_kind::zero: return "zero";
    case gate_kind::slow: return "slow";
    case gate_kind::fast: return "fast";
    case gate_kind::steep: return "steep";
    case gate_kind::resets: return "resets";
    case gate_kind::mixed: break;
  }
  return "mixed";
}

char const* name(beta_kind kind) {
  switch (kind) {
    case beta_kind::two: return "two";
    case beta_kind::one: return "one";
    case beta_kind::zero: return "zero";
    case beta_kind::uniform: break;
  }
  return "uniform";
}

std::string input_spec::text() const {
  std::ostringstream out;
  out << name(family) << ", heads " << dims.key_heads << "/" << dims.value_heads << ", dims " << dims.key_dim << "x"
      << dims.value_dim << ", rows " << rows << ", keys " << name(keys) << ", gates " << name(gates) << ", beta "
      << name(betas) << ", seed " << seed;
  return out.str();
}

layer_inputs::layer_inputs(input_spec const& made_of)
    : spec(made_of),
      q({made_of.rows, made_of.dims.key_heads, made_of.dims.key_dim}, made_of.how),
      rows(made_of.family, made_of.dims, made_of.rows, made_of.how) {
  std::mt19937_64 random(spec.seed);
  std::normal_distribution<double> normal;
  draw_keys(spec.keys, rows.k.view(), random);
  for_each_element(q.view(), [&](float& x, std::int64_t) { x = static_cast<float>(normal(random)); });
  for_each_element(rows.v.view(), [&](float& x, std::int64_t) { x = static_cast<float>(normal(random)); });
  for_each_element(rows.gates.view(),
                   [&](float& x, std::int64_t) { x = to_space(draw_gate(spec.gates, random), spec.space); });
  if (rows.has_beta) {
    for_each_element(rows.beta.view(),
                     [&](float& x, std::int64_t) { x = static_cast<float>(draw_beta(spec.betas, random)); });
  }
}

layer_inputs layer_inputs::blank(input_spec const& like) {
  layer_inputs out;
  out.spec = like;
  out.q = tensor<3>({like.rows, like.dims.key_heads, like.dims.key_dim}, like.how);
  out.rows = rows_data(like.family, like.dims, like.rows, like.how);
  return out;
}

void copy_rows(const_rows_view from, std::int64_t first, std::int64_t count, rows_view to, std::int64_t at) {
  auto const source = from.slice(first, count);
  auto const target = to.slice(at, count);
  copy_elements(source.k, target.k);
  copy_elements(source.v, target.v);
  copy_elements(source.gates, target.gates);
  if (!source.beta.empty()) copy_elements(source.beta, target.beta);
}

void copy_rows(query_rows_view const& from, std::int64_t first, std::int64_t count, layer_inputs& to, std::int64_t at) {
  copy_rows(from.rows, first, count, to.rows.view(), at);
  copy_elements(from.q.rows(first, count), to.q.view().rows(at, count));
}

std::vector<float> random_states(state_dims const& dims, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(to_index(dims.value_heads * dims.state_elements()));
  for (float& value : x) value = normal(random);
  return x;
}

layer_oracle::layer_oracle(family_id family, state_dims const& dims, row_options const& options)
    : family_(family), dims_(dims), options_(options) {
  for (std::int32_t h = 0; h < dims.value_heads; ++h) {
    heads_.emplace_back(traits_of(family).law, to_index(dims.key_dim), to_index(dims.value_dim));
  }
}

void layer_oracle::start() {
  for (auto& head : heads_) head.start();
}

void layer_oracle::start(std::vector<float> const& states) {
  auto const size = static_cast<std::ptrdiff_t>(dims_.key_dim) * dims_.value_dim;
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    auto const first = states.begin() + static_cast<std::ptrdiff_t>(h) * size;
    heads_[h].start(std::vector<double>(first, first + size));
  }
}

void layer_oracle::step(const_rows_view rows, std::int64_t token, oracle_turn const& turn) {
  for (std::int64_t h = 0; h < dims_.value_heads; ++h) {
    std::int64_t const key_head = h / (dims_.value_heads / dims_.key_heads);
    auto key = read(rows.k, token, key_head);
    if (options_.l2_normalize) key = oracle::normalized(std::move(key), static_cast<double>(options_.l2_epsilon));
    if (!turn.frequencies.empty()) {
      key = oracle::turned(std::move(key), turn.frequencies, turn.interleaved, turn.position);
    }
    auto const value = read(rows.v, token, h);
    std::vector<double> log_decay(to_index(rows.gates.extent[2]));
    for (std::size_t i = 0; i < log_decay.size(); ++i) {
      log_decay[i] = from_space(rows.gates(token, h, static_cast<std::int64_t>(i)), options_.gates);
    }
    double const b = traits_of(family_).delta ? static_cast<double>(rows.beta(token, h)) : 0.0;
    heads_[to_index(h)].step(key.data(), value.data(), log_decay.data(), b);
  }
}

std::vector<double> layer_oracle::output(tensor_view<float const, 3> q, std::int64_t token) const {
  std::vector<double> all;
  for (std::int64_t h = 0; h < dims_.value_heads; ++h) {
    auto query = read(q, token, h / (dims_.value_heads / dims_.key_heads));
    if (options_.l2_normalize) query = oracle::normalized(std::move(query), static_cast<double>(options_.l2_epsilon));
    auto const o = heads_[to_index(h)].output(query.data(), static_cast<double>(options_.q_scale));
    all.insert(all.end(), o.begin(), o.end());
  }
  return all;
}

std::vector<double> layer_oracle::states() const {
  std::vector<double> all;
  for (auto const& head : heads_) all.insert(all.end(), head.state().begin(), head.state().end());
  return all;
}

void layer_oracle::round_into(summary_view out) const {
  auto const states_all = states();
  for_each_element(out.end_states, [&](float& x, std::int64_t i) { x = static_cast<float>(states_all[to_index(i)]); });
  for (std::int64_t h = 0; h < dims_.value_heads; ++h) {
    auto const transition = traits_of(family_).delta ? head(h).transition() : head(h).log_transition();
    for (std::int64_t i = 0; i < out.operators.extent[1]; ++i) {
      out.operators(h, i) = static_cast<float>(transition[to_index(i)]);
    }
  }
}

double relative_error(std::vector<float> const& found, std::vector<double> const& wanted) {
  if (found.size() != wanted.size()) return std::numeric_limits<double>::infinity();
  std::vector<double> difference(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) difference[i] = static_cast<double>(found[i]) - wanted[i];
  double const miss = norm(difference);
  return miss == 0.0 ? 0.0 : miss / norm(wanted);
}

double state_error(tensor_view<float const, 3> found, layer_oracle const& wanted) {
  double worst = 0.0;
  for (std::int64_t h = 0; h < found.extent[0]; ++h) {
    double const error = relative_error(gather(found[h]), wanted.head(h).state());
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

double operator_excess(operator_form form, std::int64_t key_dim, std::vector<float> const& found,
                       std::vector<double> const& wanted) {
  std::size_t const size = to_index(key_dim);
  std::vector<double> difference(size * size, 0.0);
  for (std::size_t i = 0; i < size * size; ++i) {
    double t = 0.0;
    if (form == operator_form::dense) {
      t = static_cast<double>(found[i]);
    } else if (i / size == i % size) {
      t = std::exp(static_cast<double>(found[form == operator_form::scalar ? 0 : i / size]));
    }
    difference[i] = t - wanted[i];
  }
  double const allowed = 1e-5 * norm(wanted) + 1e-7 * std::sqrt(static_cast<double>(key_dim));
  return norm(difference) / allowed;
}

double operator_excess(operator_form form, std::int64_t key_dim, tensor_view<float const, 2> found,
                       layer_oracle const& wanted) {
  double worst = 0.0;
  for (std::int64_t h = 0; h < found.extent[0]; ++h) {
    std::vector<float> head(to_index(found.extent[1]));
    for (std::size_t i = 0; i < head.size(); ++i) head[i] = found(h, static_cast<std::int64_t>(i));
    double const excess = operator_excess(form, key_dim, head, wanted.head(h).transition());
    if (!(excess <= worst)) worst = excess;
  }
  return worst;
}

double output_error(tensor_view<float const, 3> found, std::vector<double> const& wanted) {
  double worst = 0.0;
  std::int64_t const heads = found.extent[1];
  std::int64_t const width = found.extent[2];
  for (std::int64_t h = 0; h < heads; ++h) {
    std::vector<float> own;
    std::vector<double> reference;
    for (std::int64_t t = 0; t < found.extent[0]; ++t) {
      for (std::int64_t j = 0; j < width; ++j) {
        own.push_back(found(t, h, j));
        reference.push_back(wanted[to_index((t * heads + h) * width + j)]);
      }
    }
    double const error = relative_error(own, reference);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

lent_scratch::lent_scratch(std::int64_t bytes, std::size_t misalignment)
    : memory_(to_index(bytes) + 2 * guard + misalignment, std::byte{0xA5}),
      first_(guard + misalignment),
      size_(to_index(bytes)) {
  std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(first_), size_, std::byte{0xFF});
}

bool lent_scratch::guards_intact() const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    bool const inside = i >= first_ && i < first_ + size_;
    if (!inside && memory_[i] != std::byte{0xA5}) return false;
  }
  return true;
}

}  // namespace hypic::test
