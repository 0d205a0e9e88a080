// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/core/launch.cuh"
#include "hypic/cuda/fold_chains.hpp"
#include "hypic/segment/rows.hpp"

namespace hypic::inline v0 {

/// A matrix by its strides, or none.
template <class T>
struct matrix_ref {
  T* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;

  __device__ explicit operator bool() const { return data != nullptr; }
  __device__ T& operator()(int row, int column) const { return data[row * row_stride + column * column_stride]; }
};

/// A few columns of X, which a chain's dense operators multiply from the left: X is the state, Dk x Dv, or the composed
/// operator, Dk x Dk, that starts at I and to which no end states are added. Columns count from the first of these.
class dense_item {
 public:
  /// `head` counts over all chains; `column` over the state's columns, rounded up to blocks of `width`, then over the
  /// operator's.
  __device__ dense_item(chain_plan const& plan, chain_tables const& tables, std::int64_t head, int column, int width)
      : plan_(plan), tables_(tables), chain_(head / plan.dims.value_heads), head_(head % plan.dims.value_heads) {
    through_ = tables.chains[chain_];
    int const state_columns = (plan.dims.value_dim + width - 1) / width * width;
    composes_ = column >= state_columns;
    first_ = composes_ ? column - state_columns : column;
    columns_ = (composes_ ? plan.dims.key_dim : plan.dims.value_dim) - first_;
  }

  __device__ bool wanted() const {
    return tables_.prefixes != nullptr || (composes_ ? through_.operators : through_.state) != nullptr;
  }
  __device__ std::int64_t runs() const { return through_.runs; }
  __device__ bool composes() const { return composes_; }
  __device__ bool has(int column) const { return column < columns_; }

  template <class T>
  __device__ T const* operators(std::int64_t run) const {
    return static_cast<T const*>(run_at(run).operators) + head_ * plan_.operator_head_stride;
  }
  __device__ int exponent(std::int64_t run) const {
    return plan_.stored == dtype::f16 ? run_at(run).operator_exponents[head_] : 0;
  }
  /// The end state's element (0, column).
  __device__ float const* end_state(std::int64_t run, int column) const {
    return run_at(run).end_states + head_ * plan_.end_state_head_stride + first_ + column;
  }

  /// X before the first run, where it is given: the state's initial one. Otherwise it is I for an operator, or zero.
  __device__ matrix_ref<float const> given() const {
    if (composes_ || through_.initial == nullptr) return {};
    return {through_.initial + state_offset(), plan_.states.key, plan_.states.value};
  }
  __device__ float start(int row, int column) const { return composes_ && row == first_ + column ? 1.0f : 0.0f; }

  /// Where X goes after the last run, and after `run`; nowhere where it is not wanted.
  __device__ matrix_ref<float> result() const {
    if (composes_) return through_.operators == nullptr ? matrix_ref<float>{} : operator_at(through_.operators);
    if (through_.state == nullptr) return {};
    return {through_.state + state_offset(), plan_.states.key, plan_.states.value};
  }
  __device__ matrix_ref<float> prefix(std::int64_t run) const {
    if (tables_.prefixes == nullptr) return {};
    auto const& prefix = tables_.prefixes[through_.first_run + run];
    if (composes_) return prefix.operators == nullptr ? matrix_ref<float>{} : operator_at(prefix.operators);
    if (prefix.end_states == nullptr) return {};
    std::int64_t const value_dim = plan_.dims.value_dim;
    return {prefix.end_states + head_ * plan_.dims.key_dim * value_dim + first_, value_dim, 1};
  }
  /// Eight rows of four columns of the end state.
  __device__ void read_end_state(std::int64_t run, int row, int column, float (&to)[8][4]) const {
    auto const* const from = composes_ ? nullptr : end_state(run, column);
    int const count = min(4, columns_ - column);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      bool const there = !composes_ && count > 0 && row + r < plan_.dims.key_dim;
      auto const* const at = from + static_cast<std::int64_t>(row + r) * plan_.dims.value_dim;
      if (there) load(at, count, count == 4 && is_aligned<16>(at), to[r]);
      for (int c = 0; c < 4 && !there; ++c) to[r][c] = 0.0f;
    }
  }

  __device__ void flag_non_finite() const {
    if (tables_.flags != nullptr) atomicOr(tables_.flags + chain_, static_cast<unsigned>(value_flag::non_finite));
  }

 private:
  __device__ chain_run const& run_at(std::int64_t run) const { return tables_.runs[through_.first_run + run]; }
  __device__ std::int64_t state_offset() const { return head_ * plan_.states.head + first_ * plan_.states.value; }
  __device__ matrix_ref<float> operator_at(float* operators) const {
    std::int64_t const key_dim = plan_.dims.key_dim;
    return {operators + head_ * key_dim * key_dim + first_, key_dim, 1};
  }

  chain_plan const& plan_;
  chain_tables const& tables_;
  chain through_;
  std::int64_t chain_;
  std::int64_t head_;
  int first_;
  int columns_;
  bool composes_;
};

}  // namespace hypic::inline v0
