// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "hypic/store/cache_store.hpp"

/// What tests of the store share: small models, records with seeded contents, and the verbs on one record.
namespace hypic::test {

inline linear_layer make_linear(family_id family, state_dims dims, std::int32_t tail_rows = 0) {
  return {.family = family, .dims = dims, .tail_rows = tail_rows, .tail_channels = tail_rows > 0 ? 6 : 0};
}

inline attention_layer make_attention(std::int32_t kv_heads, std::int32_t key_dim, std::int32_t value_dim) {
  return {.query_heads = 2 * kv_heads, .kv_heads = kv_heads, .key_dim = key_dim, .value_dim = value_dim};
}

/// Layer by layer, because g++ 12 warns of uninitialised memory where a list of variants is copied.
template <class... Layer>
model_layout model_of(std::int32_t head_rows, Layer const&... layer) {
  model_layout model;
  model.head_rows = head_rows;
  (model.layers.emplace_back(layer), ...);
  return model;
}

/// Every family, grouped heads, Dk != Dv, odd extents, layers with and without a convolution, two kinds of attention.
inline model_layout make_model(std::int32_t head_rows = 4) {
  auto rotary = make_linear(family_id::retnet, {2, 2, 4, 3}, 3);
  rotary.rotary = rotary_embedding{.frequencies = {1.0, 0.01}};
  auto attention = make_attention(2, 4, 4);
  attention.rotary = rotary_embedding{.frequencies = {1.0, 0.1}};
  return model_of(head_rows, rotary, make_linear(family_id::gla, {1, 3, 5, 2}), attention,
                  make_linear(family_id::gated_deltanet, {2, 4, 3, 5}, 3), make_attention(1, 3, 7),
                  make_linear(family_id::kda, {2, 2, 4, 4}, 1));
}

/// A smaller one for tests of many records: one linear layer of two heads, one attention layer of four.
inline model_layout make_small_model() {
  return model_of(8, make_linear(family_id::gated_deltanet, {2, 2, 4, 4}, 3), make_attention(4, 4, 4));
}

inline std::vector<std::int32_t> make_tokens(std::int64_t count, std::int32_t seed) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(seed * 1000 + static_cast<std::int32_t>(i));
  return tokens;
}

inline std::vector<std::byte> make_block(record_layout const& layout, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes()));
  for (auto& byte : block) byte = static_cast<std::byte>(random());
  return block;
}

/// A record with all that publishing it takes.
struct segment_record {
  std::vector<std::int32_t> tokens;
  record_layout layout;
  record_key key;
  std::vector<std::byte> block;
  std::vector<digest> digests;

  segment_record(model_layout const& model, std::int64_t count, std::int32_t seed, std::string_view tenant = {},
                 std::uint64_t epoch = 0)
      : tokens(make_tokens(count, seed)),
        layout(*record_layout::make(model, count)),
        key(*make_record_key({.tokens = tokens, .model = "test", .tenant = tenant, .epoch = epoch})),
        block(make_block(layout, static_cast<std::uint32_t>(seed))),
        digests(*part_digests(layout, block)) {}

  /// What it counts for in a store, as memory_store.hpp states it.
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(block.size() + 4 * tokens.size() + 32 * (digests.size() + 1));
  }
  publish_request publication(std::int64_t value = 1, std::span<part_id const> parts = {}) const {
    return {key, tokens, &layout, block, digests, parts, value};
  }
  lookup_request question(std::span<part_id const> parts = {}) const { return {key, tokens, &layout, parts}; }
};

/// The parts of a record that `wanted` picks.
template <class Predicate>
std::vector<part_id> parts_where(record_layout const& layout, Predicate wanted) {
  std::vector<part_id> parts;
  for (auto const& part : layout.parts()) {
    if (wanted(part.id)) parts.push_back(part.id);
  }
  return parts;
}

inline std::span<std::byte const> bytes_of(record_part const& part, std::span<std::byte const> block) {
  return block.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes));
}

inline bool same_bytes(std::span<std::byte const> left, std::span<std::byte const> right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

/// Whether the parts of two blocks of one layout are equal; of what lies between them nothing is said.
inline bool same_parts(record_layout const& layout, std::span<std::byte const> left, std::span<std::byte const> right) {
  for (auto const& part : layout.parts()) {
    if (!same_bytes(bytes_of(part, left), bytes_of(part, right))) return false;
  }
  return true;
}

inline status publish(cache_store& store, publish_request const& request) {
  status outcome;
  auto const first = store.publish({&request, 1}, {&outcome, 1});
  return first == outcome ? outcome : status{status::backend_failure, "first outcome"};
}

/// A look-up of one record, kept until it goes.
class asked {
 public:
  asked(cache_store& store, lookup_request const& request) : store_(store) {
    if (auto const begun = store_.begin({&request, 1})) name_ = *begun;
    polled_ = store_.poll(name_, {&result_, 1});
  }
  asked(asked const&) = delete;
  asked& operator=(asked const&) = delete;
  ~asked() {
    if (name_ != ticket::none) static_cast<void>(store_.release(name_));
  }

  bool hit() const { return polled_ == status::ok && result_.state == lookup_state::hit; }
  miss_reason reason() const { return polled_ == status::ok ? result_.reason : miss_reason::store_failure; }
  std::span<std::byte const> block() const { return result_.block; }
  ticket name() const { return name_; }
  status release(fence after = {}) { return store_.release(std::exchange(name_, ticket::none), after); }

 private:
  cache_store& store_;
  ticket name_ = ticket::none;
  status polled_;
  lookup_result result_;
};

inline miss_reason look_up(cache_store& store, lookup_request const& request) { return asked(store, request).reason(); }

/// Flips a bit of a part that a store holds. What a lease shows is constant, and the store has no verb that changes what it
/// keeps, so a test that plays faulty memory casts the constness away; the bytes themselves are not constant objects.
inline void tamper(asked const& reader, record_part const& part) {
  auto* const bytes = const_cast<std::byte*>(reader.block().data());
  bytes[part.offset + part.bytes / 2] ^= std::byte{4};
}

/// The contract kit's `damage` of a store that serves its own memory.
inline bool damage_in_place(cache_store& store, lookup_request const& of) {
  asked const reader{store, of};
  if (reader.hit()) tamper(reader, of.layout->parts()[static_cast<std::size_t>(of.layout->find(of.parts[0]))]);
  return reader.hit();
}

}  // namespace hypic::test
