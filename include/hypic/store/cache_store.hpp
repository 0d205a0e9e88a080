// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hypic/store/key.hpp"
#include "hypic/store/record.hpp"

namespace hypic::inline v0 {

/// Why a record is not served. Append-only.
enum class miss_reason : std::uint8_t {
  none = 0,
  absent,           ///< no record of that key
  incomplete,       ///< a part that was asked for is not there
  token_mismatch,   ///< the key is there with other tokens
  layout_mismatch,  ///< the record's block is not the one that the reader expects
  corrupt,          ///< a part fails its digest
  store_failure,    ///< the store could not say
};

/// A short phrase for people, such as "absent". Never null.
HYPIC_API char const* to_string(miss_reason reason) noexcept;

enum class lookup_state : std::uint8_t { pending, hit, miss };

/// A record that is asked for. The layout and the tokens outlive the ticket.
struct lookup_request {
  record_key key{};
  std::span<std::int32_t const> tokens{};
  record_layout const* layout = nullptr;
  std::span<part_id const> parts{};  ///< the parts wanted; empty: all
};

/// What became of a request. On a hit `block` is the record (the parts asked for, at the layout's offsets, verified),
/// immutable and in place until the ticket is released.
struct lookup_result {
  lookup_state state = lookup_state::pending;
  miss_reason reason = miss_reason::none;
  std::span<std::byte const> block{};
};

/// Names one `begin`. Zero is no ticket.
enum class ticket : std::uint64_t { none = 0 };

/// Tells a store when work that reads leased bytes is over. Without a function it is over now.
/// A store asks within its verbs, of any thread, until the answer is true; the function does not call the store.
struct fence {
  bool (*reached)(void* context) noexcept = nullptr;
  void* context = nullptr;
};

/// A record, or some of its parts, to be kept. Everything is copied before `publish` returns.
struct publish_request {
  record_key key{};
  std::span<std::int32_t const> tokens{};
  record_layout const* layout = nullptr;
  std::span<std::byte const> block{};
  std::span<digest const> digests{};  ///< part_digests of the block, in layout order
  std::span<part_id const> parts{};   ///< the parts in the block; empty: all
  std::int64_t value = 0;             ///< what keeping it saves, in any one unit (tokens, microseconds)
};

/// Where records live. A host implements it or takes a shipped one. Verbs are batched; none blocks or throws; all may be
/// called from any thread.
///   A hit has every part that was asked for, each verified against the digest it was published with, and the very
///   tokens. Any doubt is a miss with its reason. What is published becomes visible part by part, each only when whole,
///   and never changes; publishing what is there is ok and keeps what is there.
class HYPIC_API cache_store {
 public:
  virtual ~cache_store() = default;

  /// Starts a look-up. Errors: invalid_argument (a request without layout), capacity_exceeded, backend_failure.
  virtual result<ticket> begin(std::span<lookup_request const> requests) noexcept = 0;

  /// Where the look-up stands. Shapes: one result a request. Errors: not_found (ticket), invalid_shape.
  virtual status poll(ticket which, std::span<lookup_result> results) noexcept = 0;

  /// Keeps records. Shapes: one outcome a request. Returns the first outcome that is not ok.
  /// Outcomes: ok, invalid_argument (no layout, a part that is not in it, value < 0, a key that is there with other
  ///           tokens), invalid_shape (block, digests or tokens do not fit the layout, a key that is there with another
  ///           one), corrupt (a digest does not fit its part), capacity_exceeded, backend_failure. After any but ok
  ///           nothing new is visible.
  virtual status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept = 0;

  /// Ends the lease once the fence is reached. Errors: not_found (a ticket that is unknown or released already).
  virtual status release(ticket which, fence after = {}) noexcept = 0;
};

}  // namespace hypic::inline v0
