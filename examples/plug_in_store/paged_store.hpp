// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "hypic/store/cache_store.hpp"

/// A store as an engine would write one: records lie scattered over the fixed-size pages of one slab, which is all the
/// memory that records take, and the least recently used go first. A hit is gathered into a buffer that its lease owns,
/// so that nothing that happens to the pages afterwards can touch it.
// [begin declaration]
class paged_store final : public hypic::cache_store {
 public:
  paged_store(std::int64_t pages, std::int64_t page_bytes);

  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const> requests) noexcept override;
  hypic::status poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept override;
  hypic::status publish(std::span<hypic::publish_request const> requests,
                        std::span<hypic::status> outcomes) noexcept override;
  hypic::status release(hypic::ticket which, hypic::fence after = {}) noexcept override;
  // [end declaration]

  std::int64_t free_pages() const;

  /// Flips a bit of a part in its page, as faulty memory would; false: it is not there. For the contract kit.
  bool damage(hypic::record_key const& key, hypic::part_id const& part);

 private:
  struct record {
    std::vector<std::int32_t> tokens;
    hypic::record_layout layout;
    std::vector<hypic::digest> digests;
    std::vector<bool> there{};          // a part each
    std::vector<std::int64_t> pages{};  // in the order of the block's bytes
    std::uint64_t last_use = 0;
  };
  struct lease {
    std::vector<hypic::lookup_result> answers;
    std::list<std::vector<std::byte>> blocks;
    hypic::fence end;  // of a released lease
  };

  hypic::lookup_result answer(hypic::lookup_request const& request, lease& into);
  hypic::status keep(hypic::publish_request const& request);
  hypic::status check(hypic::publish_request const& request, std::vector<std::int64_t>& wanted) const;
  bool make_room(std::size_t pages);
  template <class Fn>
  void each_piece(record const& of, hypic::record_part const& part, Fn fn);
  void end_leases();

  std::int64_t page_bytes_;
  std::vector<std::byte> slab_;
  std::vector<std::int64_t> free_;
  std::map<hypic::record_key, record> records_;
  std::map<hypic::ticket, lease> open_;
  std::map<hypic::ticket, lease> closing_;  // released, the fence being ahead
  std::uint64_t clock_ = 0;
  std::uint64_t last_ticket_ = 0;
  mutable std::mutex mutex_;
};
