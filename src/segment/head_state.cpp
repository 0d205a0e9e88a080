// SPDX-License-Identifier: Apache-2.0
#include "segment/head_state.hpp"

#include <algorithm>
#include <bit>

#include "core/decay.hpp"
#include "segment/turn.hpp"

namespace hypic::inline v0 {
namespace {

std::int64_t most_columns(operator_form form, state_dims const& dims) noexcept {
  return 2 * std::int64_t{dims.value_dim} + (form == operator_form::dense ? dims.key_dim : 0);
}

}  // namespace

std::int64_t head_state::bytes(operator_form form, state_dims const& dims) noexcept {
  auto const elements = dims.key_dim * padded_row(most_columns(form, dims));
  return scratch_bytes<double>(elements) + scratch_bytes<float>(elements) + scratch_bytes<double>(dims.key_dim);
}

head_state::head_state(operator_form form, state_dims const& dims, scratch& memory) noexcept
    : form_(form),
      key_dim_(dims.key_dim),
      value_dim_(dims.value_dim),
      log_elements_(form == operator_form::dense ? 0 : operator_elements(form, dims.key_dim)),
      columns_(dims.value_dim),
      operator_column_(dims.value_dim) {
  auto const row = padded_row(most_columns(form, dims));
  exact_ = {memory.take<double>(key_dim_ * row), row};
  rounded_ = {memory.take<float>(key_dim_ * row), row};
  log_decay_ = memory.take<double>(key_dim_);
}

void head_state::load(tensor_view<float const, 2> state) noexcept {
  for (std::int64_t d = 0; d < key_dim_; ++d) {
    for (std::int64_t c = 0; c < value_dim_; ++c) rounded_.row(d)[c] = state.empty() ? 0.0f : state(d, c);
  }
  settle();
}

void head_state::store(tensor_view<float, 2> state) const noexcept {
  for (std::int64_t d = 0; d < key_dim_; ++d) {
    for (std::int64_t c = 0; c < value_dim_; ++c) state(d, c) = rounded_.row(d)[c];
  }
}

void head_state::settle() noexcept {
  for (std::int64_t d = 0; d < key_dim_; ++d) std::copy_n(rounded_.row(d), columns_, exact_.row(d));
  for (std::int64_t e = 0; in_body_ && e < log_elements_; ++e) {
    log_decay_[e] = static_cast<double>(static_cast<float>(log_decay_[e]));
  }
}

void head_state::begin_body(head_summary<float const> const& so_far) noexcept {
  bool const fresh = so_far.end_state.empty();
  auto const end_state = [&](std::int64_t d, std::int64_t c) { return fresh ? 0.0f : so_far.end_state(d, c); };
  bool shared = true;
  for (std::int64_t d = 0; d < key_dim_; ++d) {
    for (std::int64_t c = 0; c < value_dim_; ++c) {
      rounded_.row(d)[value_dim_ + c] = end_state(d, c);
      shared =
          shared && std::bit_cast<std::uint32_t>(end_state(d, c)) == std::bit_cast<std::uint32_t>(rounded_.row(d)[c]);
    }
  }
  in_body_ = true;
  end_column_ = shared ? 0 : value_dim_;
  operator_column_ = end_column_ + value_dim_;
  columns_ = operator_column_;
  for (std::int64_t e = 0; e < log_elements_; ++e) log_decay_[e] = fresh ? 0.0 : static_cast<double>(so_far.op(e));
  if (form_ == operator_form::dense) {
    columns_ += key_dim_;
    for (std::int64_t d = 0; d < key_dim_; ++d) {
      for (std::int64_t e = 0; e < key_dim_; ++e) {
        rounded_.row(d)[operator_column_ + e] = fresh ? (d == e ? 1.0f : 0.0f) : so_far.op(d * key_dim_ + e);
      }
    }
  }
  settle();
}

void head_state::end_body(head_summary<float> const& out) noexcept {
  for (std::int64_t d = 0; d < key_dim_; ++d) {
    std::copy_n(rounded_.row(d) + end_column_, value_dim_, &out.end_state(d, 0));
    if (form_ == operator_form::dense) {
      std::copy_n(rounded_.row(d) + operator_column_, key_dim_, &out.op(d * key_dim_));
    }
  }
  for (std::int64_t e = 0; e < log_elements_; ++e) out.op(e) = static_cast<float>(log_decay_[e]);
  in_body_ = false;
  end_column_ = 0;
  columns_ = operator_column_ = value_dim_;
}

void head_state::apply(head_summary<float const> const& body, rotation const* turn) noexcept {
  if (form_ == operator_form::dense) {
    // Outside of a body the columns after the running state are free.
    auto const free = rounded_.at(0, value_dim_);
    product(key_dim_, value_dim_, key_dim_, {body.op.data, key_dim_, 1}, rounded_, free, store_mode::set);
    for (std::int64_t d = 0; d < key_dim_; ++d) std::copy_n(free.row(d), value_dim_, exact_.row(d));
  } else {
    for (std::int64_t d = 0; d < key_dim_; ++d) {
      double const decay = decay_of(static_cast<double>(body.op(form_ == operator_form::scalar ? 0 : d)));
      for (std::int64_t c = 0; c < value_dim_; ++c) exact_.row(d)[c] *= decay;
    }
  }
  auto const end_state = [&](std::int64_t d, std::int64_t c) { return static_cast<double>(body.end_state(d, c)); };
  for_each_pair(turn, [&](std::int64_t first, std::int64_t second, double cosine, double sine) {
    for (std::int64_t c = 0; c < value_dim_; ++c) {
      exact_.row(first)[c] += cosine * end_state(first, c) - sine * end_state(second, c);
      exact_.row(second)[c] += sine * end_state(first, c) + cosine * end_state(second, c);
    }
  });
  for (std::int64_t d = turned_dims(turn); d < key_dim_; ++d) {
    for (std::int64_t c = 0; c < value_dim_; ++c) exact_.row(d)[c] += end_state(d, c);
  }
  for (std::int64_t d = 0; d < key_dim_; ++d) {
    for (std::int64_t c = 0; c < value_dim_; ++c) rounded_.row(d)[c] = static_cast<float>(exact_.row(d)[c]);
  }
  settle();
}

void head_state::advance(std::int64_t rows, double const* decay, std::int64_t decay_stride,
                         matrix_view<double const> keys, matrix_view<double const> updates) noexcept {
  bool const twice = form_ != operator_form::dense && end_column_ != 0;
  hypic::advance(key_dim_, columns(), rows, keys, updates, decay, decay_stride,
                 {exact_, rounded_, twice ? 2 : 1, end_column_});
}

void head_state::add_log_gates(double const* gates) noexcept {
  for (std::int64_t e = 0; in_body_ && e < log_elements_; ++e) log_decay_[e] += gates[e];
}

}  // namespace hypic::inline v0
