// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hypic/store/key.hpp"
#include "hypic/store/record.hpp"

namespace hypic::inline v0 {

/// Why a record is not served; of several reasons a store gives any. Append-only.
enum class miss_reason : std::uint8_t {
  none = 0,
  absent,           ///< no record of that key
  incomplete,       ///< a part that was asked for is not there, or is none of the layout's
  token_mismatch,   ///< the key is there with other tokens
  layout_mismatch,  ///< the record's block is not the one that the reader expects
  corrupt,          ///< a part fails its digest
  store_failure,    ///< the store could not say
};

/// A short phrase for people, such as "absent". Never null.
HYPIC_API char const* to_string(miss_reason reason) noexcept;

enum class lookup_state : std::uint8_t { pending, hit, miss };

/// A record that is asked for. `begin` copies the request and its list of parts; the layout and the tokens are read until
/// the ticket is released.
struct lookup_request {
  record_key key{};
  std::span<std::int32_t const> tokens{};
  record_layout const* layout = nullptr;
  std::span<part_id const> parts{};  ///< the parts wanted, in any order; empty: all
};

/// What became of a request.
///   pending  not known yet: no reason, no block
///   hit      no reason; `block` is the record: layout.bytes() long, aligned for float, the parts asked for at the
///            layout's offsets, each verified. What the other bytes are is not said.
///   miss     a reason, no block
struct lookup_result {
  lookup_state state = lookup_state::pending;
  miss_reason reason = miss_reason::none;
  std::span<std::byte const> block{};
};

/// Names one `begin` of a store, and no other after it: what comes late for an old ticket never meets a new one. Zero is
/// no ticket.
enum class ticket : std::uint64_t { none = 0 };

/// Tells a store when work that reads leased bytes is over. Without a function it is over now.
/// A store asks within its verbs, on any thread, until the answer is true, and never again after that: the context may go
/// then. The function does not call the store. A store that is destroyed asks no more.
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
  std::span<part_id const> parts{};   ///< the parts in the block; empty: all. Others' bytes and digests are not read
  std::int64_t value = 0;             ///< what keeping it saves, in any one unit (tokens, microseconds)
};

/// Where records live. A host implements it or takes a shipped one. `check_store_contract` holds a store to what is said
/// here.
///   Calls      are batches, of any size, none included; one record may be in a batch more than once. None blocks or
///              throws; all may be called from any thread.
///   Doubt      is a miss with its reason. A hit has the very tokens, and every part that was asked for, each verified
///              against the digest that it was published with.
///   Presence   is a part's, not a record's. A part that was published (ok) is there, whole, for every later `begin`,
///              until it is thrown out to make room or found corrupt; it never changes meanwhile. Publishing what is
///              there is ok and keeps what is there; what was found corrupt may be published anew.
///   Lease      from the answer to the ticket's release, and to the fence of that: a hit's bytes stay as and where they
///              are, whatever is published, thrown out or released beside it.
class HYPIC_API cache_store {
 public:
  virtual ~cache_store() = default;

  /// Starts a look-up. Errors: invalid_argument (a request without layout), capacity_exceeded, backend_failure; then
  /// there is no ticket.
  virtual result<ticket> begin(std::span<lookup_request const> requests) noexcept = 0;

  /// Where the look-up stands. An answer comes after finitely many polls, whether or not other tickets are polled or
  /// released, and does not change any more.
  /// Shapes: one result a request. Errors: not_found (a ticket that is unknown or released), invalid_shape,
  ///         backend_failure.
  virtual status poll(ticket which, std::span<lookup_result> results) noexcept = 0;

  /// Keeps records, each as if alone. Returns the first outcome that is not ok.
  /// Shapes: one outcome a request. Errors: invalid_shape (another number of outcomes: then nothing is kept).
  /// Outcomes: ok, invalid_argument (no layout, a part that is not in it, value < 0, a key that is there with other
  ///           tokens), invalid_shape (block, digests or tokens do not fit the layout, a key that is there with another
  ///           one), corrupt (a digest does not fit its part), capacity_exceeded, backend_failure. After any but ok no
  ///           part of that record has come or changed, and none that was there is gone, but to make room.
  virtual status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept = 0;

  /// Forgets the ticket, answered or not, and ends its lease once the fence is reached.
  /// Errors: not_found (a ticket that is unknown or released already), backend_failure; then nothing has happened.
  virtual status release(ticket which, fence after = {}) noexcept = 0;
};

}  // namespace hypic::inline v0
