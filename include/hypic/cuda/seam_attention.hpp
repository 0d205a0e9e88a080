// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/dtype.hpp"
#include "hypic/core/export.hpp"
#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"

/// Attention of forwarded rows on a device: what segment/seam_attention.hpp does on a host. Tables and all that they point
/// to lie in device memory and are read when the work runs: a captured call serves other requests, rows, positions and
/// pages at each replay, up to the capacities of its plan.
namespace hypic::inline v0 {

/// Strides of q or o in elements; the last dimension has unit stride.
struct row_strides {
  std::int64_t row = 0;
  std::int64_t head = 0;
  friend constexpr bool operator==(row_strides const&, row_strides const&) = default;
};

/// Strides of keys or values in elements; the last dimension has unit stride. `page` is read where keys lie in pages.
struct cache_strides {
  std::int64_t page = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
  friend constexpr bool operator==(cache_strides const&, cache_strides const&) = default;
};

/// A checked description of one layer's attention on a device. A value.
struct device_attention_plan {
  dtype type = dtype::bf16;  ///< of q, keys, values and o
  std::int32_t query_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;    ///< 16, 32 .. 256, as is value_dim. 64, 128 and 256 are not padded
  std::int32_t value_dim = 0;  ///< padded to the larger of the two
  float scale = 1.0f;
  float soft_cap = 0.0f;       ///< 0: none; otherwise scores become soft_cap * tanh(score / soft_cap)
  std::int64_t window = 0;     ///< 0: none; otherwise a query sees its own key and the window - 1 before it
  std::int64_t page_size = 0;  ///< keys of one page; 0: a request's keys lie in one piece
  row_strides q{};             ///< all strides: whole multiples of 16 bytes
  row_strides o{};
  cache_strides keys{};
  cache_strides values{};
  std::int64_t total_rows = 0;  ///< capacity: rows of q, positions, o and lse
  std::int64_t requests = 0;    ///< of the table
  std::int64_t most_keys = 0;   ///< capacity: keys of any one request

  /// Scratch of a call: 4 (value_dim + 2) bytes for each split of `most_keys`, row and query head, whatever the requests
  /// hold; none for one split.
  HYPIC_API std::int64_t workspace_bytes() const noexcept;
  /// Kernels of a call, which are all that its captured graph holds: 0 without rows or requests, 1 for one split, else 2.
  HYPIC_API std::int32_t kernels() const noexcept;
  friend constexpr bool operator==(device_attention_plan const&, device_attention_plan const&) = default;
};

/// The plan with the strides of dense q [rows, query_heads, key_dim], o alike, keys [page, token, kv_heads, key_dim] and
/// values alike.
HYPIC_API device_attention_plan with_dense_strides(device_attention_plan plan) noexcept;

/// Errors: invalid_shape, invalid_argument, unsupported (a dimension above 256; 2^31 query heads of rows; 2^26 keys).
HYPIC_API status validate(device_attention_plan const& plan) noexcept;

/// One request: its rows in the packed input, and its keys and values in prompt order, so that row j belongs to position j.
/// Shapes: keys [.., kv_heads, key_dim], values [.., kv_heads, value_dim] by the plan's strides, 16-byte aligned. In
///         pages: key j is token j % page_size of page `pages[j / page_size]`.
struct attention_request {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;      ///< may be 0: such a request reads nothing
  std::int64_t key_rows = 0;  ///< how many keys its memory holds
  void const* keys = nullptr;
  void const* values = nullptr;
  std::int32_t const* pages = nullptr;
};

/// What one call reads and writes, in device memory; q and o are 16-byte aligned.
/// Shapes: requests [plan.requests], which share no row; positions [plan.total_rows], true ones;
///         q [plan.total_rows, query_heads, key_dim], o [.., value_dim] by the plan's strides;
///         sink_logits [query_heads] or null; lse [plan.total_rows, query_heads], dense, or null: natural log of the sum of
///         exp over scores and sink. Rows of no request are neither read nor written.
struct device_attention_tables {
  attention_request const* requests = nullptr;
  std::int64_t const* positions = nullptr;
  void const* q = nullptr;
  void* o = nullptr;
  float const* sink_logits = nullptr;
  float* lse = nullptr;
};

/// Causal attention of forwarded rows over their whole prompt. Query head h reads kv head h / (query_heads / kv_heads).
/// A position outside of [0, min(key_rows, most_keys)) sees no key: it gives 0 and, without a sink, an lse of -inf.
/// Cost:       queries (rows times the query heads of one kv head) stand in tiles of 128, or of 64 where a dimension is above
///             128 and a thread block has less than 193 KiB of shared memory, or of 32 for f32. A tile reads a block of keys
///             once, and only blocks that a row of it sees. Rows in the order of their positions make the fewest reads; any
///             order is correct.
/// Method:     16-bit types: products on tensor cores, summed in fp32, weights rounded to the type. f32: fp32 arithmetic
///             with compensated sums. Keys in splits of `attention_split()`, counted from position 0, merged in order.
/// Accuracy:   relative to fp64: 2e-6 for f32, 5e-3 for f16 and bf16.
/// Guarantees: `plan.kernels()` kernels; no allocation, no synchronisation, capturable; a request has the same bits in any
///             batch, for the same path and GPU model. Keys that a row does not see do not touch it, whatever they hold.
/// Errors:     those of `validate`; invalid_argument (null tables, misaligned q or o); workspace_too_small; unsupported
///             (the Hopper path, which has no kernel of its own yet); those of every call.
HYPIC_API status seam_attention(device_attention_plan const& plan, device_attention_tables const& tables,
                                device_exec const& ex);

/// Keys of one split. A constant: it is part of what makes the bits.
HYPIC_API std::int64_t attention_split() noexcept;

}  // namespace hypic::inline v0
