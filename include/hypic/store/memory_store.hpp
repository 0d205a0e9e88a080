// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "hypic/core/observer.hpp"
#include "hypic/store/cache_store.hpp"

namespace hypic::inline v0 {

/// Where a store's bytes are. free + held + pinned = capacity at all times; bytes count blocks (whole ones, whichever
/// parts are there), tokens and digests, the key's among them.
struct store_usage {
  std::int64_t capacity = 0;
  std::int64_t free = 0;
  std::int64_t held = 0;    ///< of records that nobody leases: they may be evicted
  std::int64_t pinned = 0;  ///< of leased records
  std::int64_t records = 0;
};

/// A bounded store in the process's own memory.
/// Eviction: the record with the least value per byte goes first, aged by a logical clock (no wall time): a record's
///           priority is clock + value / bytes when it is published or hit, and the clock rises to each evicted
///           priority; ties go to the least recently used (GreedyDual-Size, Cao and Irani, USITS 1997). Leased records
///           stay. A record that fits only by evicting leased ones is refused with capacity_exceeded.
/// Look-ups stand for the moment of `begin` and are answered at the first poll; while one thread polls, another sees them
/// pending. A corrupt record is served to no look-up that begins after it is found; its bytes stay until its leases end.
/// Failed allocations become backend_failure; what was thrown out to make room for a publication that then failed is gone.
/// Polling and releasing allocate nothing.
class HYPIC_API memory_store final : public cache_store {
 public:
  /// `watch` may be null; it counts "store.hit", "store.miss.<reason>" (the enumerator's name), "store.publish" (those
  /// that were ok), "store.evict". A capacity below 0 is 0. Throws std::bad_alloc alone.
  explicit memory_store(std::int64_t capacity_bytes, observer* watch = nullptr);
  ~memory_store() override;

  result<ticket> begin(std::span<lookup_request const> requests) noexcept override;
  status poll(ticket which, std::span<lookup_result> results) noexcept override;
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override;
  status release(ticket which, fence after = {}) noexcept override;

  store_usage usage() const noexcept;

 private:
  class implementation;
  std::unique_ptr<implementation> impl_;
};

}  // namespace hypic::inline v0
