// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/segment/rows.hpp"

namespace hypic_engine {

/// What happens between tokens in one forward pass. The model computes each row by itself and hands a layer's rows to a
/// mixer, which knows what stands before them. Throws engine_error.
class token_mixer {
 public:
  virtual ~token_mixer() = default;

  /// The raw rows before each run, for the convolution of a linear layer.
  /// Shapes: raw [rows, channels], tails [runs, K-1, channels].
  virtual void tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw,
                     hypic::tensor_view<float, 3> tails) = 0;

  /// Shapes: o [rows, value_heads, value_dim].
  virtual void linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) = 0;

  /// q and k are turned to the rows' positions. Shapes: q, o [rows, heads, dim]; k, v [rows, kv_heads, dim].
  virtual void attention(std::int32_t layer, hypic::tensor_view<float const, 3> q, hypic::tensor_view<float const, 3> k,
                         hypic::tensor_view<float const, 3> v, hypic::tensor_view<float, 3> o) = 0;

  /// Sees the hidden rows that a layer leaves, [rows, hidden].
  virtual void after_layer(std::int32_t layer, hypic::tensor_view<float const, 2> hidden) {
    static_cast<void>(layer);
    static_cast<void>(hidden);
  }
};

}  // namespace hypic_engine
