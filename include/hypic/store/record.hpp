// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hypic/algebra/summary.hpp"
#include "hypic/store/model_layout.hpp"
#include "hypic/store/sha256.hpp"

namespace hypic::inline v0 {

/// Revision of the bytes of a record; part of every key.
inline constexpr std::uint32_t record_layout_revision = 1;

/// What a record is made of. A part is the unit of transfer, of presence and of verification. One without bytes (rows of
/// an empty segment, say) is left out.
enum class part_kind : std::uint8_t {
  head_keys,     ///< of a linear layer, a key head each: k of the head rows
  linear_state,  ///< of a linear layer, a value head each: S0 of the body, v of the head rows, T, gates, beta
  tail,          ///< of a linear layer with a convolution, a group of channels each: its last min(K-1, tokens) raw rows
  keys_values,   ///< of an attention layer, a kv head each: K turned to canonical positions, then V
};

struct part_id {
  std::int32_t layer = 0;
  part_kind kind{};
  std::int32_t head = 0;
  friend constexpr auto operator<=>(part_id const&, part_id const&) = default;
};

/// Where a part lies in a record.
struct record_part {
  part_id id{};
  std::int64_t offset = 0;  ///< bytes, a multiple of 64
  std::int64_t bytes = 0;
  friend constexpr bool operator==(record_part const&, record_part const&) = default;
};

/// The bytes of one segment's record: one block, parts in order of layer, kind and head, fp32 throughout.
/// A value made from a model's layout and a length; typed windows on a block come from the members below.
class HYPIC_API record_layout {
 public:
  record_layout() = default;

  /// Errors: those of validate(model_layout); invalid_shape (tokens < 0, a record beyond 2^63 bytes or 2^20 parts);
  ///         out_of_memory.
  static result<record_layout> make(model_layout const& model, std::int64_t tokens);

  std::int64_t tokens() const noexcept { return tokens_; }
  std::int64_t bytes() const noexcept { return bytes_; }          ///< of the block, a multiple of 64
  std::int64_t head_rows() const noexcept { return head_rows_; }  ///< min(W, tokens)
  bool has_body() const noexcept { return tokens_ > head_rows_; }
  std::span<record_part const> parts() const noexcept { return parts_; }
  /// Index into parts(), or -1.
  std::int64_t find(part_id const& id) const noexcept;

  /// Windows on `block`, which is `bytes()` long and aligned for float. `layer` is of the kind that each names.
  /// The windows of a layer cover each byte of its parts once. Heads are one stride apart, beta's too, whose stride is
  /// therefore not 1. Windows without elements have no data; body() is empty where there is no body, which
  /// `segment_prefill` then makes none.
  rows_view head(std::int32_t layer, std::byte* block) const noexcept;  ///< [head_rows, ...]
  summary_view body(std::int32_t layer, std::byte* block) const noexcept;
  tensor_view<float, 3> tail(std::int32_t layer,
                             std::byte* block) const noexcept;  ///< [min(K-1, tokens), groups, channels a group]
  tensor_view<float, 3> keys(std::int32_t layer, std::byte* block) const noexcept;    ///< [tokens, kv_heads, key_dim]
  tensor_view<float, 3> values(std::int32_t layer, std::byte* block) const noexcept;  ///< [tokens, kv_heads, value_dim]
  const_rows_view head(std::int32_t layer, std::byte const* block) const noexcept;
  const_summary_view body(std::int32_t layer, std::byte const* block) const noexcept;
  tensor_view<float const, 3> tail(std::int32_t layer, std::byte const* block) const noexcept;
  tensor_view<float const, 3> keys(std::int32_t layer, std::byte const* block) const noexcept;
  tensor_view<float const, 3> values(std::int32_t layer, std::byte const* block) const noexcept;

  friend bool operator==(record_layout const&, record_layout const&) = default;

 private:
  std::vector<model_layer> layers_;
  std::vector<record_part> parts_;
  std::int64_t tokens_ = 0;
  std::int64_t head_rows_ = 0;
  std::int64_t bytes_ = 0;
};

/// Digests of a record's parts, in the order of layout.parts(). The bytes between parts belong to none.
/// Errors: invalid_shape (`block` of another size), backend_failure, out_of_memory.
HYPIC_API result<std::vector<digest>> part_digests(record_layout const& layout, std::span<std::byte const> block);

/// ok where the parts at `indices` (empty: all of them) have the given digests; otherwise corrupt, found() being the
/// first of them that has not.
/// Shapes: digests [layout.parts()], of which those at `indices` are read. Errors: invalid_shape, out_of_range (an
///         index), backend_failure.
HYPIC_API status verify_parts(record_layout const& layout, std::span<std::byte const> block,
                              std::span<digest const> digests, std::span<std::int64_t const> indices) noexcept;

}  // namespace hypic::inline v0
