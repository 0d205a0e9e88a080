// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hypic/algebra/rotation.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/rows.hpp"
#include "hypic/segment/seam_attention.hpp"

namespace hypic::inline v0 {

/// One linear-attention layer as caching sees it.
struct linear_layer {
  family_id family{};
  state_dims dims{};
  row_options options{};
  std::int32_t tail_rows = 0;                ///< K-1 of its short causal convolution; 0: it has none
  std::int32_t tail_channels = 0;            ///< raw inputs of that convolution, a row
  std::int32_t tail_groups = 1;              ///< parts of the tail, of as many channels each: what ranks share out
  std::optional<rotary_embedding> rotary{};  ///< where its q and k are rotary; scalar operators alone
  friend bool operator==(linear_layer const&, linear_layer const&) = default;
};

/// One softmax-attention layer as caching sees it. Keys are stored turned to canonical positions.
struct attention_layer {
  std::int32_t query_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;  ///< 0: none
  std::optional<rotary_embedding> rotary{};
  friend bool operator==(attention_layer const&, attention_layer const&) = default;
};

/// The plan of that layer's attention over sequences of `total_rows` packed rows, without a window. Not checked:
/// `seam_attention` checks it.
HYPIC_API attention_plan plan_attention(attention_layer const& layer, std::int64_t total_rows,
                                        std::vector<attention_sequence> sequences);

using model_layer = std::variant<linear_layer, attention_layer>;

/// The layers of a hybrid model, first to last, and how their segments are cut.
struct model_layout {
  std::vector<model_layer> layers;
  std::int32_t head_rows = 8;      ///< W: the rows a record keeps as rows; seams may be that long
  std::int64_t max_positions = 0;  ///< bounds prompt plus generated tokens; 0: unbounded
  friend bool operator==(model_layout const&, model_layout const&) = default;
};

/// Errors: invalid_shape (an extent below its least, W < 0, query heads that are no multiple of kv heads),
///         invalid_argument (a number that is not finite: it equals nothing, itself included), unsupported (an unknown
///         family, a rotary embedding under a diagonal or dense operator, or wider than its heads).
HYPIC_API status validate(model_layout const& layout);

/// A name for all that decides a record's bits: the layout, the library's version and split constants, the back end,
/// and `host`, in which the host names its weights, quantisation and whatever else of its own changes bits.
/// Any change gives another name. Errors: those of validate; invalid_argument (`host` is empty), backend_failure,
/// out_of_memory.
HYPIC_API result<std::string> model_fingerprint(model_layout const& layout, std::string_view host);

}  // namespace hypic::inline v0
