// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/algebra/rotation.hpp"
#include "hypic/core/dtype.hpp"
#include "hypic/core/export.hpp"
#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"

/// Cached keys and values of attention layers, put into place in memory that requests own; see segment/rebase_keys.hpp.
/// One call serves all layers of one shape and all spans of all requests.
namespace hypic::inline v0 {

/// What keys and values of one layer are. Of a key's dimensions the first 2 * rotary_pairs are rotary.
struct kv_shape {
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  std::int32_t rotary_pairs = 0;
  rotary_pairing pairing = rotary_pairing::rotate_half;
  friend constexpr bool operator==(kv_shape const&, kv_shape const&) = default;
};

/// How a request's memory is divided: position p is row p % page_size of page pages[p / page_size].
struct kv_pages {
  std::int64_t page_size = 0;  ///< rows; 0: memory is contiguous, position p is row p
  std::int64_t count = 0;      ///< pages of the pool
  friend constexpr bool operator==(kv_pages const&, kv_pages const&) = default;
};

/// Strides of cached rows in elements, [rows, kv_heads, dim], dense within a head.
struct cached_strides {
  std::int64_t row = 0;
  std::int64_t head = 0;
  friend constexpr bool operator==(cached_strides const&, cached_strides const&) = default;
};

/// Strides of placed rows in elements, [page, row, kv_heads, dim] in any order of the first three.
struct placed_strides {
  std::int64_t page = 0;  ///< not read where memory is contiguous
  std::int64_t row = 0;
  std::int64_t head = 0;
  friend constexpr bool operator==(placed_strides const&, placed_strides const&) = default;
};

/// One cached span of one layer: row r goes to position first_position + r. All pointers are the device's.
/// Shapes: keys [rows, kv_heads, key_dim], values [rows, kv_heads, value_dim]; keys_out and values_out are where position
///         0, or page 0 of the pool, is; angles [2, rotary_pairs], cosines and sines of the turn (see `write_angles`).
struct rebase_span {
  void const* keys = nullptr;
  void const* values = nullptr;
  std::int64_t rows = 0;          ///< none: the entry is skipped, and nothing else of it is read
  float const* angles = nullptr;  ///< null: keys are copied as they are
  void* keys_out = nullptr;
  void* values_out = nullptr;
  std::int32_t const* pages = nullptr;  ///< the request's, from position 0; not read where memory is contiguous
  std::int64_t first_position = 0;
};

/// A checked description of one call. A value; it needs no scratch.
struct rebase_keys_plan {
  dtype type = dtype::bf16;  ///< of keys and values
  kv_shape shape{};
  kv_pages pages{};
  cached_strides cached_keys{};
  cached_strides cached_values{};
  placed_strides placed_keys{};
  placed_strides placed_values{};
  std::int64_t spans = 0;  ///< entries of the table
  std::int64_t rows = 0;   ///< what the grid is made for: the most rows of a span. More are served, by fewer blocks
  friend constexpr bool operator==(rebase_keys_plan const&, rebase_keys_plan const&) = default;
};

/// A plan for dense cached rows [rows, kv_heads, dim] and a dense destination [page, row, kv_heads, dim]; its members may
/// be changed and are checked by each call.
HYPIC_API rebase_keys_plan plan_rebase_keys(dtype type, kv_shape const& shape, kv_pages const& pages,
                                            std::int64_t spans, std::int64_t rows) noexcept;

/// ok, or which member is at fault. Errors: invalid_shape, invalid_argument, unsupported (beyond the size of a grid).
HYPIC_API status validate(rebase_keys_plan const& plan) noexcept;

/// Puts the keys and values of every entry into place: keys turn from the canonical copy, values are copied. The
/// canonical copies are only read. What is written may overlap neither them nor what another entry writes.
/// Shapes:     spans [plan.spans], in device memory, read when the work runs.
/// Cost:       reads and writes each row once. Fastest where bases are 16-byte aligned, and dimensions, strides and
///             pairs are multiples of 16 bytes; whether bases are is found for each entry.
/// Accuracy:   f32: 1e-6 relative to the fp64 turn, to position 1e6. f16, bf16: rounded once, from f32: half a unit in
///             the last place of the fp64 turn plus 1.7e-7 of the pair's length, which is within one unit for every part
///             above 2^-10 of that length. What does not turn keeps its bits.
/// Guarantees: one kernel; no allocation, no synchronisation, capturable; the same bits in any batch, on either path and
///             for any alignment. A row whose page is negative or not one of the pool's is skipped.
/// Errors:     those of `validate`; invalid_argument (null table); unsupported (a path that the device has not); those of
///             every call.
HYPIC_API status rebase_keys(rebase_keys_plan const& plan, rebase_span const* spans, device_exec const& ex);

}  // namespace hypic::inline v0
