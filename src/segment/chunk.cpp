// SPDX-License-Identifier: Apache-2.0
#include "segment/chunk.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "core/decay.hpp"
#include "segment/turn.hpp"

namespace hypic::inline v0 {
namespace {

/// Log gates below this, -inf too, count as it in a chunk's sums: their differences stay finite, those between gates
/// after a reset stay exact to 1e-10, and the decay over a reset is 0 all the same.
constexpr double reset_log_gate = -1e4;

/// How far b |k|^2 may be outside of [0, 2]: rounding of normalised keys, and no more.
constexpr double expansion_tolerance = 0x1p-6;

bool all_finite(float const* values, std::int64_t count) noexcept {
  constexpr std::uint32_t exponent = 0x7f800000u;
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[i]) & exponent) == exponent);
  }
  return bad == 0;
}

double natural_log(gate_space space, float gate) noexcept {
  switch (space) {
    case gate_space::log2: return static_cast<double>(gate) * std::numbers::ln2;
    case gate_space::linear: return std::log(static_cast<double>(gate));
    case gate_space::natural_log: break;
  }
  return static_cast<double>(gate);
}

std::uint32_t gate_flags(gate_space space, float gate) noexcept {
  if (std::isnan(gate)) return non_finite;
  bool const linear = space == gate_space::linear;
  bool const valid = linear ? gate >= 0.0f && gate <= 1.0f : gate <= 0.0f;
  return valid ? 0u : gate_out_of_range;
}

/// Reads a row in fp64 and, where asked to, normalises it. Returns its sum of squares as it is read out.
double read_row(tensor_view<float const, 2> const& rows, std::int64_t i, row_options const& options,
                double* out) noexcept {
  auto const dim = rows.extent[1];
  std::copy_n(&rows(i, 0), dim, out);
  double squares = 0.0;
  row_dots(1, dim, out, {out, 0}, &squares);
  if (!options.l2_normalize) return squares;
  double const inverse = 1.0 / std::sqrt(squares + static_cast<double>(options.l2_epsilon));
  for (std::int64_t d = 0; d < dim; ++d) out[d] *= inverse;
  return squares * inverse * inverse;
}

}  // namespace

template <state_family F>
std::int64_t chunk_runner<F>::bytes(state_dims const& dims) noexcept {
  std::int64_t const key_row = padded_row(dims.key_dim);
  std::int64_t const channels = gate_elements<F>(dims.key_dim);
  std::int64_t const columns = F::delta_rule ? 2 * std::int64_t{dims.value_dim} + dims.key_dim : dims.value_dim;
  std::int64_t total = 3 * scratch_bytes<double>(chunk * key_row) + scratch_bytes<double>((chunk + 1) * channels) +
                       scratch_bytes<double>(channels) + 2 * scratch_bytes<double>(chunk) +
                       scratch_bytes<double>(chunk * chunk) + scratch_bytes<float>(chunk * chunk) +
                       scratch_bytes<float>(chunk * key_row) + scratch_bytes<double>(chunk * padded_row(columns));
  if (F::delta_rule) total += scratch_bytes<float>(chunk * padded_row(dims.value_dim));
  return total;
}

template <state_family F>
chunk_runner<F>::chunk_runner(state_dims const& dims, row_options const& options, scratch& memory) noexcept
    : key_dim_(dims.key_dim), value_dim_(dims.value_dim), channels_(gate_elements<F>(dims.key_dim)), options_(options) {
  std::int64_t const key_row = padded_row(key_dim_);
  keys_ = {memory.take<double>(chunk * key_row), key_row};
  queries_ = {memory.take<double>(chunk * key_row), key_row};
  log_sums_ = memory.take<double>((chunk + 1) * channels_);
  gates_ = memory.take<double>(channels_);
  betas_ = memory.take<double>(chunk);
  dots_ = memory.take<double>(chunk);
  lower_ = {memory.take<double>(chunk * chunk), chunk};
  attention_ = {memory.take<float>(chunk * chunk), chunk};
  scaled_ = {memory.take<float>(chunk * key_row), key_row};
  decayed_ = {memory.take<double>(chunk * key_row), key_row};
  updates_.stride = padded_row(F::delta_rule ? 2 * value_dim_ + key_dim_ : value_dim_);
  updates_.data = memory.take<double>(chunk * updates_.stride);
  rounded_updates_.stride = padded_row(value_dim_);
  if (F::delta_rule) rounded_updates_.data = memory.take<float>(chunk * rounded_updates_.stride);
  std::fill_n(log_sums_, channels_, 0.0);
}

template <state_family F>
std::uint32_t chunk_runner<F>::run(head_rows const& rows, std::int64_t position, head_state& state,
                                   tensor_view<float, 2> o) noexcept {
  std::uint32_t flags = 0;
  for (std::int64_t r = 0; r < rows.count();) {
    std::int64_t const count = std::min(rows.count() - r, chunk - (position + r) % chunk);
    flags |= run_chunk(rows.slice(r, count), state, o.rows(r, count));
    r += count;
    if ((position + r) % settle_tokens == 0) state.settle();
  }
  state.settle();
  return flags;
}

template <state_family F>
std::uint32_t chunk_runner<F>::run_chunk(head_rows const& rows, head_state& state, tensor_view<float, 2> o) noexcept {
  auto flags = read(rows, state);
  if (!o.empty()) {
    for (std::int64_t i = 0; i < rows.count(); ++i) flags |= read_query(rows, i);
  }
  relate(rows.count(), !o.empty());
  if constexpr (F::delta_rule) {
    solve_updates(rows, state);
  } else {
    copy_updates(rows);
  }
  if (!o.empty()) write_outputs(rows, state, o);
  advance(rows.count(), state);
  return flags;
}

template <state_family F>
std::uint32_t chunk_runner<F>::read(head_rows const& rows, head_state& state) noexcept {
  std::uint32_t flags = 0;
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    flags |= read_key(rows, i) | read_gates(rows, i, state);
    if (!all_finite(&rows.v(i, 0), value_dim_)) flags |= non_finite;
  }
  return flags;
}

template <state_family F>
std::uint32_t chunk_runner<F>::read_key(head_rows const& rows, std::int64_t i) noexcept {
  if constexpr (F::delta_rule) betas_[i] = static_cast<double>(rows.beta(i));
  double* const key = keys_.row(i);
  double const squares = read_row(rows.k, i, options_, key);
  for_each_pair(rows.turn, [key](std::int64_t first, std::int64_t second, double cosine, double sine) {
    double const before = key[first];
    key[first] = cosine * before - sine * key[second];
    key[second] = sine * before + cosine * key[second];
  });
  if (!std::isfinite(squares)) return non_finite;
  if constexpr (F::delta_rule) {
    if (!std::isfinite(betas_[i])) return non_finite;
    if (std::abs(1.0 - betas_[i] * squares) > 1.0 + expansion_tolerance) return expansive_update;
  }
  return 0;
}

template <state_family F>
std::uint32_t chunk_runner<F>::read_query(head_rows const& rows, std::int64_t i) noexcept {
  double* const query = queries_.row(i);
  double const squares = read_row(rows.q, i, options_, query);
  for (std::int64_t d = 0; d < key_dim_; ++d) query[d] *= static_cast<double>(options_.q_scale);
  return std::isfinite(squares) ? 0u : non_finite;
}

template <state_family F>
std::uint32_t chunk_runner<F>::read_gates(head_rows const& rows, std::int64_t i, head_state& state) noexcept {
  std::uint32_t flags = 0;
  for (std::int64_t c = 0; c < channels_; ++c) {
    float const gate = rows.gates(i, c);
    flags |= gate_flags(options_.gates, gate);
    gates_[c] = natural_log(options_.gates, gate);
    log_sum(i)[c] = log_sum(i - 1)[c] + (gates_[c] > reset_log_gate ? gates_[c] : reset_log_gate);
  }
  state.add_log_gates(gates_);
  return flags;
}

/// L and the attention matrix: every pair of a row and an earlier one, or of a row and itself.
template <state_family F>
void chunk_runner<F>::relate(std::int64_t count, bool with_queries) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    auto const decay = [&](std::int64_t j) {
      return F::gate_per_channel ? 1.0 : decay_of(log_sum(i)[0] - log_sum(j)[0]);
    };
    matrix_view<double const> earlier = keys_;
    if constexpr (F::gate_per_channel) {
      for (std::int64_t j = 0; j <= i; ++j) decay_key(log_sum(j), log_sum(i), j);
      earlier = decayed_;
    }
    if constexpr (F::delta_rule) {
      row_dots(i, key_dim_, keys_.row(i), earlier, lower_.row(i));
      for (std::int64_t j = 0; j < i; ++j) lower_.row(i)[j] *= betas_[i] * decay(j);
    }
    if (with_queries) {
      row_dots(i + 1, key_dim_, queries_.row(i), earlier, dots_);
      for (std::int64_t j = 0; j <= i; ++j) attention_.row(i)[j] = static_cast<float>(dots_[j] * decay(j));
    }
  }
}

template <state_family F>
void chunk_runner<F>::decay_key(double const* from, double const* to, std::int64_t j) noexcept {
  double const* const key = keys_.row(j);
  double* const out = decayed_.row(j);
  if constexpr (F::gate_per_channel) {
    decayed_row(key_dim_, to, from, key, out);
  } else {
    double const decay = decay_of(to[0] - from[0]);
    for (std::int64_t d = 0; d < key_dim_; ++d) out[d] = decay * key[d];
  }
}

template <state_family F>
matrix_view<double const> chunk_runner<F>::keys_from_start(std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    decay_key(log_sum(-1), log_sum(i), i);
    double* const key = decayed_.row(i);
    for (std::int64_t d = 0; d < key_dim_; ++d) key[d] = exact_factor(key[d]);
  }
  return decayed_;
}

template <state_family F>
left_operand chunk_runner<F>::queries_from_start(std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    double const* const query = queries_.row(i);
    float* const out = scaled_.row(i);
    if constexpr (F::gate_per_channel) {
      decayed_row(key_dim_, log_sum(i), log_sum(-1), query, out);
    } else {
      double const decay = decay_of(log_sum(i)[0]);
      for (std::int64_t d = 0; d < key_dim_; ++d) out[d] = static_cast<float>(decay * query[d]);
    }
  }
  return {scaled_.data, scaled_.stride, 1};
}

template <state_family F>
void chunk_runner<F>::copy_updates(head_rows const& rows) noexcept {
  for (std::int64_t i = 0; i < rows.count(); ++i) std::copy_n(&rows.v(i, 0), value_dim_, updates_.row(i));
}

template <state_family F>
matrix_view<float const> chunk_runner<F>::rounded_updates(head_rows const& rows) noexcept {
  if constexpr (!F::delta_rule) return {rows.v.data, rows.v.stride[0]};
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    for (std::int64_t c = 0; c < value_dim_; ++c) rounded_updates_.row(i)[c] = static_cast<float>(updates_.row(i)[c]);
  }
  return rounded_updates_;
}

template <state_family F>
void chunk_runner<F>::solve_updates(head_rows const& rows, head_state& state) noexcept {
  auto const count = rows.count();
  exact_product(count, state.columns(), key_dim_, keys_from_start(count), state.rounded(), updates_);
  auto const solve_columns = [&](std::int64_t column, std::int64_t columns, matrix_view<float const> values) {
    solve(count, columns, lower_, betas_, values, updates_.at(0, column));
  };
  matrix_view<float const> const values{rows.v.data, rows.v.stride[0]};
  solve_columns(0, value_dim_, values);
  if (state.end_column() != 0) solve_columns(state.end_column(), value_dim_, values);
  if (state.columns() > state.operator_column()) {
    solve_columns(state.operator_column(), key_dim_, {nullptr, 0});
  }
}

template <state_family F>
void chunk_runner<F>::write_outputs(head_rows const& rows, head_state const& state, tensor_view<float, 2> o) noexcept {
  auto const count = rows.count();
  auto const updates = rounded_updates(rows);
  matrix_view<float> const out{o.data, o.stride[0]};
  product(count, value_dim_, key_dim_, queries_from_start(count), state.rounded(), out, store_mode::set);
  // A row's own block ends at the row: zeros in its place would let a later row's NaN in.
  constexpr std::int64_t block = 8;
  for (std::int64_t first = 0; first < count; first += block) {
    auto const last = std::min(first + block, count);
    product(last - first, value_dim_, first, {attention_.row(first), chunk, 1}, updates, out.at(first, 0),
            store_mode::add);
    for (std::int64_t i = first; i < last; ++i) {
      product(1, value_dim_, i - first + 1, {attention_.row(i) + first, chunk, 1}, updates.at(first, 0), out.at(i, 0),
              store_mode::add);
    }
  }
}

template <state_family F>
void chunk_runner<F>::advance(std::int64_t count, head_state& state) noexcept {
  double const* const end = log_sum(count - 1);
  for (std::int64_t i = 0; i < count; ++i) decay_key(log_sum(i), end, i);
  for (std::int64_t c = 0; c < channels_; ++c) gates_[c] = decay_of(end[c]);
  state.advance(count, gates_, F::gate_per_channel ? 1 : 0, decayed_, updates_);
}

template class chunk_runner<retnet>;
template class chunk_runner<gla>;
template class chunk_runner<gated_deltanet>;
template class chunk_runner<kda>;

}  // namespace hypic::inline v0
