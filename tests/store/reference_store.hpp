// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "hypic/store/memory_store.hpp"

namespace hypic::test {

/// What memory_store promises, in plain lists and sums. It has no bytes: it says which publication a part is of. Names of
/// records are indices; a look-up and a publication name parts by index.
class reference_store {
 public:
  struct record {
    std::vector<int> version;   ///< a part each: the publication that it is of, or `nothing`
    std::vector<bool> damaged;  ///< a part each
    std::int64_t bytes = 0;
    std::int64_t value = 0;
    double priority = 0.0;
    std::int64_t last_use = 0;
    std::int64_t leases = 0;
  };
  static constexpr int nothing = -1;

  struct lookup {
    std::size_t name = 0;
    std::vector<std::size_t> parts{};
    std::shared_ptr<record> leased{};
    lookup_state state = lookup_state::pending;
    miss_reason reason = miss_reason::none;
  };

  explicit reference_store(std::int64_t capacity) : capacity_(capacity) {}

  /// Leases what a look-up will be answered from.
  void begin(std::vector<lookup>& asked) {
    for (auto& one : asked) {
      auto const found = table_.find(one.name);
      if (found == table_.end()) {
        answer(one, miss_reason::absent);
      } else if (!std::ranges::all_of(one.parts, [&](auto i) { return found->second->version[i] != nothing; })) {
        answer(one, miss_reason::incomplete);
      } else {
        one.leased = found->second;
        ++one.leased->leases;
      }
    }
  }

  /// Answers what is pending; one that meets damage ends its lease and takes the record away.
  void poll(std::vector<lookup>& asked) {
    for (auto& one : asked) {
      if (one.state != lookup_state::pending) continue;
      bool const corrupt = std::ranges::any_of(one.parts, [&](auto i) { return one.leased->damaged[i]; });
      answer(one, corrupt ? miss_reason::corrupt : miss_reason::none);
      if (!corrupt) {
        use(*one.leased);
        continue;
      }
      if (auto const there = table_.find(one.name); there != table_.end() && there->second == one.leased) {
        taken_away_.push_back(one.leased);
        table_.erase(there);
      }
      end(one);
    }
  }

  /// Ends the leases of a look-up.
  void release(std::vector<lookup>& asked) {
    for (auto& one : asked) end(one);
  }

  status publish(std::size_t name, int version, std::vector<std::size_t> const& parts, std::size_t part_count,
                 std::int64_t bytes, std::int64_t value) {
    auto found = table_.find(name);
    if (found == table_.end()) {
      if (!make_room(bytes)) return status::capacity_exceeded;
      auto made = std::make_shared<record>();
      made->version.assign(part_count, nothing);
      made->damaged.assign(part_count, false);
      made->bytes = bytes;
      found = table_.emplace(name, std::move(made)).first;
    }
    auto& kept = *found->second;
    for (auto const i : parts)
      if (kept.version[i] == nothing) kept.version[i] = version;
    kept.value = std::max(kept.value, value);
    use(kept);
    return status::ok;
  }

  /// Throws out the least value per byte, aged, then the least recently used. False: what is leased leaves too little.
  bool make_room(std::int64_t bytes) {
    if (bytes > capacity_ - usage().pinned) return false;
    while (usage().free < bytes) {
      auto least = table_.end();
      for (auto at = table_.begin(); at != table_.end(); ++at)
        if (at->second->leases == 0 && (least == table_.end() || before(*at->second, *least->second))) least = at;
      clock_ = std::max(clock_, least->second->priority);
      table_.erase(least);
    }
    return true;
  }

  /// The record of a name, or null.
  record* find(std::size_t name) const {
    auto const found = table_.find(name);
    return found == table_.end() ? nullptr : found->second.get();
  }

  store_usage usage() const {
    store_usage now{.capacity = capacity_};
    for (auto const& [name, one] : table_) (one->leases > 0 ? now.pinned : now.held) += one->bytes;
    for (auto const& one : taken_away_)
      if (one->leases > 0) now.pinned += one->bytes;
    now.free = capacity_ - now.held - now.pinned;
    now.records = static_cast<std::int64_t>(table_.size());
    return now;
  }

 private:
  static bool before(record const& left, record const& right) {
    return std::tie(left.priority, left.last_use) < std::tie(right.priority, right.last_use);
  }
  static void answer(lookup& one, miss_reason reason) {
    one.reason = reason;
    one.state = reason == miss_reason::none ? lookup_state::hit : lookup_state::miss;
  }
  void use(record& one) {
    one.priority = clock_ + static_cast<double>(one.value) / static_cast<double>(one.bytes);
    one.last_use = ++uses_;
  }
  void end(lookup& one) {
    if (one.leased) --one.leased->leases;
    one.leased.reset();
    std::erase_if(taken_away_, [](auto const& each) { return each->leases == 0; });
  }

  std::int64_t capacity_;
  std::map<std::size_t, std::shared_ptr<record>> table_;
  double clock_ = 0.0;
  std::int64_t uses_ = 0;
  std::vector<std::shared_ptr<record>> taken_away_;  // there for their leases alone
};

}  // namespace hypic::test
