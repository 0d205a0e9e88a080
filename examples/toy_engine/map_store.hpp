// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <vector>

#include "hypic/store/cache_store.hpp"

/// About the smallest store that keeps the contract: a map under one mutex. A block is shared by its record and its leases,
/// and never written again: more parts of a record make a new block, and the old one stays, uncounted, as long as it is
/// leased. A full store throws out what is worth least and is not leased.
class map_store final : public hypic::cache_store {
 public:
  using status = hypic::status;

  explicit map_store(std::int64_t capacity_bytes) : free_(capacity_bytes) {}

  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const> requests) noexcept override try {
    for (auto const& request : requests)
      if (request.layout == nullptr) return status{status::invalid_argument, "layout"};
    std::lock_guard const lock(mutex_);
    lease made;
    for (auto const& request : requests) made.answers.push_back(answer(request, made));
    auto const name = static_cast<hypic::ticket>(++last_ticket_);
    open_.emplace(name, std::move(made));
    return name;
  } catch (std::bad_alloc const&) {
    return status::backend_failure;
  }

  status poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept override {
    std::lock_guard const lock(mutex_);
    auto const found = open_.find(which);
    if (found == open_.end()) return {status::not_found, "which"};
    if (results.size() != found->second.answers.size()) return {status::invalid_shape, "results"};
    std::ranges::copy(found->second.answers, results.begin());
    return status::ok;
  }

  status publish(std::span<hypic::publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (outcomes.size() != requests.size()) return {status::invalid_shape, "outcomes"};
    std::lock_guard const lock(mutex_);
    std::erase_if(closing_, over);
    std::ranges::transform(requests, outcomes.begin(), [this](auto const& request) { return keep(request); });
    auto const failed = std::ranges::find_if(outcomes, [](auto const& s) { return s != status::ok; });
    return failed == outcomes.end() ? status::ok : *failed;
  }

  status release(hypic::ticket which, hypic::fence after = {}) noexcept override {
    std::lock_guard const lock(mutex_);
    auto const found = open_.find(which);
    if (found == open_.end()) return {status::not_found, "which"};
    found->second.end = after;
    closing_.insert(open_.extract(found));
    std::erase_if(closing_, over);
    return status::ok;
  }

  /// Flips a bit of a stored part, as faulty memory would; false: it is not there. For the contract kit.
  bool damage(hypic::record_key const& key, hypic::part_id const& part) {
    std::lock_guard const lock(mutex_);
    auto const found = records_.find(key);
    auto const i = found == records_.end() ? -1 : found->second.layout.find(part);
    if (i < 0 || !found->second.there[static_cast<std::size_t>(i)]) return false;
    found->second.block->data()[found->second.layout.parts()[static_cast<std::size_t>(i)].offset] ^= std::byte{1};
    return true;
  }

 private:
  using shared_block = std::shared_ptr<std::vector<std::byte>>;
  struct record {
    std::vector<std::int32_t> tokens;
    hypic::record_layout layout;
    std::vector<hypic::digest> digests;
    std::vector<bool> there;  // a part each
    shared_block block;
    std::int64_t value = 0;
  };
  struct lease {
    std::vector<hypic::lookup_result> answers;
    std::vector<shared_block> blocks;
    hypic::fence end;
  };

  static bool over(std::pair<hypic::ticket const, lease> const& released) {
    auto const& end = released.second.end;
    return end.reached == nullptr || end.reached(end.context);
  }

  /// Indices of the parts named, of all where none is; -1 for one that the layout has not.
  static std::vector<std::int64_t> indices(hypic::record_layout const& layout, std::span<hypic::part_id const> ids) {
    std::vector<std::int64_t> of(ids.empty() ? layout.parts().size() : ids.size());
    if (ids.empty()) std::iota(of.begin(), of.end(), 0);
    std::ranges::transform(ids, of.begin(), [&](auto const& id) { return layout.find(id); });
    return of;
  }

  hypic::lookup_result answer(hypic::lookup_request const& request, lease& into) {
    auto const miss = [](hypic::miss_reason why) { return hypic::lookup_result{hypic::lookup_state::miss, why, {}}; };
    auto const found = records_.find(request.key);
    if (found == records_.end()) return miss(hypic::miss_reason::absent);
    auto const& kept = found->second;
    if (!std::ranges::equal(kept.tokens, request.tokens)) return miss(hypic::miss_reason::token_mismatch);
    if (kept.layout != *request.layout) return miss(hypic::miss_reason::layout_mismatch);
    auto const wanted = indices(kept.layout, request.parts);
    for (auto const i : wanted)
      if (i < 0 || !kept.there[static_cast<std::size_t>(i)]) return miss(hypic::miss_reason::incomplete);
    if (hypic::verify_parts(kept.layout, *kept.block, kept.digests, wanted) != status::ok) {
      free_ += kept.layout.bytes();
      records_.erase(found);
      return miss(hypic::miss_reason::corrupt);
    }
    into.blocks.push_back(kept.block);
    return {hypic::lookup_state::hit, hypic::miss_reason::none, *kept.block};
  }

  status keep(hypic::publish_request const& request) noexcept try {
    if (request.layout == nullptr) return {status::invalid_argument, "layout"};
    if (request.value < 0) return {status::invalid_argument, "value"};
    auto const& layout = *request.layout;
    auto const given = indices(layout, request.parts);
    if (std::ranges::find(given, -1) != given.end()) return {status::invalid_argument, "parts"};
    if (std::ssize(request.tokens) != layout.tokens()) return {status::invalid_shape, "tokens"};
    if (auto const s = hypic::verify_parts(layout, request.block, request.digests, given); s != status::ok) return s;

    record made{
        {request.tokens.begin(), request.tokens.end()}, layout, {request.digests.begin(), request.digests.end()},
        std::vector<bool>(layout.parts().size()),       {},     request.value};
    auto const found = records_.find(request.key);
    if (found != records_.end()) {
      if (found->second.tokens != made.tokens) return {status::invalid_argument, "tokens: the key has others"};
      if (found->second.layout != layout) return {status::invalid_shape, "layout: the key has another"};
      made = found->second;
    }
    made.block = made.block ? std::make_shared<std::vector<std::byte>>(*made.block)
                            : std::make_shared<std::vector<std::byte>>(request.block.size());
    for (auto const at : given) {
      auto const i = static_cast<std::size_t>(at);
      if (made.there[i]) continue;
      auto const& part = layout.parts()[i];
      std::memcpy(made.block->data() + part.offset, request.block.data() + part.offset,
                  static_cast<std::size_t>(part.bytes));
      made.digests[i] = request.digests[i];
      made.there[i] = true;
    }
    if (found != records_.end()) {
      found->second = std::move(made);
      return status::ok;
    }
    if (!make_room(layout.bytes())) return {status::capacity_exceeded, "block"};
    records_.emplace(request.key, std::move(made));
    free_ -= layout.bytes();
    return status::ok;
  } catch (std::bad_alloc const&) {
    return status::backend_failure;
  }

  bool make_room(std::int64_t bytes) {
    while (free_ < bytes) {
      auto least = records_.end();
      for (auto it = records_.begin(); it != records_.end(); ++it)
        if (it->second.block.use_count() == 1 && (least == records_.end() || it->second.value < least->second.value))
          least = it;
      if (least == records_.end()) return false;
      free_ += least->second.layout.bytes();
      records_.erase(least);
    }
    return true;
  }

  std::int64_t free_;
  std::map<hypic::record_key, record> records_;
  std::map<hypic::ticket, lease> open_, closing_;
  std::uint64_t last_ticket_ = 0;
  std::mutex mutex_;
};
