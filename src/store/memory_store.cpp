// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/memory_store.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

struct record;

struct goes_first {
  bool operator()(record const* left, record const* right) const noexcept;
};
using eviction_order = std::set<record*, goes_first>;

struct alignas(64) cache_line {
  std::array<std::byte, 64> bytes;
};

/// One record of the store. Key, tokens and layout never change; a part's bytes and digest are written once, before it
/// is present.
struct record {
  record_key key;
  std::vector<std::int32_t> tokens;
  record_layout layout;
  std::vector<cache_line> lines;  // zero where nothing was published: never another record's bytes
  std::vector<digest> digests;
  std::vector<bool> present;

  std::int64_t bytes = 0;
  std::int64_t value = 0;
  double priority = 0.0;
  std::uint64_t last_use = 0;
  std::int64_t leases = 1;            // of whoever makes it
  bool retired = false;               // out of the table, and there for its leases alone
  eviction_order::node_type place{};  // in the order of eviction, while leases keep it out of there

  explicit record(publish_request const& request)
      : key(request.key),
        tokens(request.tokens.begin(), request.tokens.end()),
        layout(*request.layout),
        lines(static_cast<std::size_t>(layout.bytes()) / sizeof(cache_line)),
        digests(layout.parts().size()),
        present(layout.parts().size()) {
    eviction_order alone;
    place = alone.extract(alone.insert(this).first);
  }

  std::span<std::byte> block() noexcept {
    return {reinterpret_cast<std::byte*>(lines.data()), static_cast<std::size_t>(layout.bytes())};
  }

  /// Keeps parts that are not there yet.
  void take(publish_request const& request, std::int64_t index) noexcept {
    auto const position = static_cast<std::size_t>(index);
    if (present[position]) return;
    auto const& part = layout.parts()[position];
    std::memcpy(block().data() + part.offset, request.block.data() + part.offset, static_cast<std::size_t>(part.bytes));
    digests[position] = request.digests[position];
    present[position] = true;
  }
};

bool goes_first::operator()(record const* left, record const* right) const noexcept {
  return std::tie(left->priority, left->last_use) < std::tie(right->priority, right->last_use);
}

std::int64_t bytes_of(publish_request const& request) noexcept {
  auto const digests = request.digests.size() + 1;  // the key's among them: an empty record is bounded too
  return request.layout->bytes() + static_cast<std::int64_t>(request.tokens.size_bytes() + digests * sizeof(digest));
}

/// One request of a ticket.
struct lookup {
  lookup_result result{};
  std::shared_ptr<record> candidate{};  // leased
  std::vector<std::int64_t> indices{};  // the parts asked for; empty: all
  status verified{};
};

enum class lease_stage : std::uint8_t { begun, verifying, answered };

struct lease {
  std::vector<lookup> lookups;
  lease_stage stage = lease_stage::begun;
  fence after{};
};

bool over(lease const& one) noexcept {
  return one.stage != lease_stage::verifying && (one.after.reached == nullptr || one.after.reached(one.after.context));
}

/// What happened inside of a verb, told to the observer once the store's lock is open: it may call the store.
class tally {
 public:
  explicit tally(observer* watch) noexcept : watch_(watch) {}
  tally(tally const&) = delete;
  tally& operator=(tally const&) = delete;
  ~tally() {
    if (watch_ == nullptr) return;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) watch_->count(names[i], counts_[i]);
    }
    if (counts_[static_cast<std::size_t>(miss_reason::corrupt)] > 0) {
      watch_->log(log_level::warning, "store: a record fails its digests; it is served to nobody and computed again");
    }
  }

  void publish() noexcept { ++counts_[publish_index]; }
  void evict() noexcept { ++counts_[evict_index]; }
  void answer(miss_reason reason) noexcept { ++counts_[static_cast<std::size_t>(reason)]; }

 private:
  // Answers first, in the order of miss_reason.
  static constexpr std::array<char const*, 9> names{
      "store.hit",
      "store.miss.absent",
      "store.miss.incomplete",
      "store.miss.token_mismatch",
      "store.miss.layout_mismatch",
      "store.miss.corrupt",
      "store.miss.store_failure",
      "store.publish",
      "store.evict",
  };
  static constexpr std::size_t publish_index = 7;
  static constexpr std::size_t evict_index = 8;

  observer* watch_;
  std::array<std::int64_t, names.size()> counts_{};
};

/// Indices of `parts` in a layout; invalid_argument where one is not in it.
result<std::vector<std::int64_t>> indices_of(record_layout const& layout, std::span<part_id const> parts) {
  std::vector<std::int64_t> indices;
  indices.reserve(parts.size());
  for (auto const& part : parts) {
    indices.push_back(layout.find(part));
    if (indices.back() < 0) return status{status::invalid_argument, "parts"};
  }
  return indices;
}

/// Calls fn(index) for each of `indices`; no indices stand for all parts.
template <class Fn>
void for_each_index(record_layout const& layout, std::vector<std::int64_t> const& indices, Fn&& fn) {
  auto const all = indices.empty() ? static_cast<std::int64_t>(layout.parts().size()) : 0;
  for (std::int64_t index = 0; index < all; ++index) fn(index);
  for (auto const index : indices) fn(index);
}

status check(publish_request const& request) noexcept {
  if (request.layout == nullptr) return {status::invalid_argument, "layout"};
  if (request.value < 0) {
    return {status::invalid_argument, "value", request.value, status::relation::at_least, 0};
  }
  auto const tokens = static_cast<std::int64_t>(request.tokens.size());
  if (tokens == request.layout->tokens()) return status::ok;
  return {status::invalid_shape, "tokens", tokens, status::relation::equal_to, request.layout->tokens()};
}

}  // namespace

/// One mutex guards all members. The digests, which take nearly all of the time, are computed outside of it: those of a
/// publisher's block before, those of a reader's parts on a record that its lease keeps in place. Parts that are there
/// never change, so that reading them needs no lock.
class memory_store::implementation {
 public:
  implementation(std::int64_t capacity, observer* watch) noexcept : watch_(watch) {
    usage_.capacity = usage_.free = std::max<std::int64_t>(capacity, 0);
  }

  result<ticket> begin(std::span<lookup_request const> requests) {
    for (auto const& request : requests) {
      if (request.layout == nullptr) return status{status::invalid_argument, "layout"};
    }
    std::scoped_lock const lock(mutex_);
    end_leases();
    // All that allocates comes before anything is leased: a failure leaves no trace.
    lease made;
    made.lookups.reserve(requests.size());
    for (auto const& request : requests) made.lookups.push_back(look_up(request));
    auto const name = last_ticket_ + 1;
    auto const& kept = open_.emplace(name, std::move(made)).first->second;
    last_ticket_ = name;
    for (auto const& one : kept.lookups) {
      if (one.candidate) pin(*one.candidate);
    }
    return ticket{name};
  }

  status poll(ticket which, std::span<lookup_result> results) noexcept {
    tally counts{watch_};
    std::unique_lock lock(mutex_);
    end_leases();
    auto const name = static_cast<std::uint64_t>(which);
    auto const place = open_.find(name);
    if (place == open_.end()) return {status::not_found, "ticket"};
    auto& asked = place->second;
    if (results.size() != asked.lookups.size()) {
      return {status::invalid_shape, "results", static_cast<std::int64_t>(results.size()), status::relation::equal_to,
              static_cast<std::int64_t>(asked.lookups.size())};
    }
    if (asked.stage == lease_stage::begun) {
      verify(asked, lock);
      for (auto& one : asked.lookups) settle(one, counts);
      asked.stage = lease_stage::answered;
      if (!open_.contains(name)) return {status::not_found, "ticket"};  // another thread released it meanwhile
    }
    std::ranges::transform(asked.lookups, results.begin(), &lookup::result);
    return status::ok;
  }

  status publish(publish_request const& request) {
    if (auto const s = check(request); s != status::ok) return s;
    auto const indices = indices_of(*request.layout, request.parts);
    if (!indices) return indices.error();
    auto const s = verify_parts(*request.layout, request.block, request.digests, *indices);
    if (s != status::ok) return s;

    tally counts{watch_};
    std::scoped_lock const lock(mutex_);
    end_leases();
    auto const kept = pinned_record(request, counts);
    if (!kept) return kept.error();
    auto& target = **kept;
    for_each_index(target.layout, *indices, [&](std::int64_t index) { target.take(request, index); });
    target.value = std::max(target.value, request.value);
    touch(target);
    unpin(target);
    counts.publish();
    return status::ok;
  }

  status release(ticket which, fence after) noexcept {
    std::scoped_lock const lock(mutex_);
    auto const place = open_.find(static_cast<std::uint64_t>(which));
    bool const found = place != open_.end();
    if (found) {
      place->second.after = after;
      closing_.insert(open_.extract(place));  // moves the node: allocates nothing, and the lease keeps its address
    }
    end_leases();
    return found ? status{} : status{status::not_found, "ticket"};
  }

  store_usage usage() const noexcept {
    std::scoped_lock const lock(mutex_);
    auto now = usage_;
    now.records = static_cast<std::int64_t>(table_.size());
    return now;
  }

 private:
  lookup look_up(lookup_request const& request) const {
    auto const miss = [](miss_reason reason) { return lookup{.result = {lookup_state::miss, reason, {}}}; };
    auto const place = table_.find(request.key);
    if (place == table_.end()) return miss(miss_reason::absent);
    auto const& candidate = *place->second;
    if (!std::ranges::equal(candidate.tokens, request.tokens)) return miss(miss_reason::token_mismatch);
    if (candidate.layout != *request.layout) return miss(miss_reason::layout_mismatch);

    auto indices = indices_of(candidate.layout, request.parts);
    if (!indices) return miss(miss_reason::incomplete);
    bool complete = true;
    for_each_index(candidate.layout, *indices, [&](std::int64_t index) {
      complete = complete && candidate.present[static_cast<std::size_t>(index)];
    });
    if (!complete) return miss(miss_reason::incomplete);
    return {.candidate = place->second, .indices = std::move(*indices)};
  }

  /// Computes the digests of the candidates' parts with the lock open. The stage keeps the lease from ending meanwhile.
  static void verify(lease& asked, std::unique_lock<std::mutex>& lock) noexcept {
    asked.stage = lease_stage::verifying;
    lock.unlock();
    for (auto& one : asked.lookups) {
      if (!one.candidate) continue;
      auto& candidate = *one.candidate;
      one.verified = verify_parts(candidate.layout, candidate.block(), candidate.digests, one.indices);
    }
    lock.lock();
  }

  void settle(lookup& one, tally& counts) noexcept {
    if (one.candidate && one.verified == status::ok) {
      one.result = {lookup_state::hit, miss_reason::none, one.candidate->block()};
      touch(*one.candidate);
    } else if (one.candidate) {
      bool const corrupt = one.verified == status::corrupt;
      one.result = {lookup_state::miss, corrupt ? miss_reason::corrupt : miss_reason::store_failure, {}};
      if (corrupt) retire(*one.candidate);
      unpin(*one.candidate);
      one.candidate.reset();
    }
    counts.answer(one.result.reason);
  }

  /// The record that a publication goes to, found or made, leased for its time.
  result<std::shared_ptr<record>> pinned_record(publish_request const& request, tally& counts) {
    if (auto const place = table_.find(request.key); place != table_.end()) {
      auto const& found = place->second;
      if (!std::ranges::equal(found->tokens, request.tokens)) {
        return status{status::invalid_argument, "tokens: the key names others"};
      }
      if (found->layout != *request.layout)
        return status{status::invalid_shape, "layout: the key's record has another"};
      pin(*found);
      return found;
    }

    auto const bytes = bytes_of(request);
    if (auto const s = make_room(bytes, counts); s != status::ok) return s;
    auto made = std::make_shared<record>(request);
    table_.emplace(request.key, made);
    made->bytes = bytes;
    move(usage_.free, usage_.pinned, bytes);
    return made;
  }

  status make_room(std::int64_t bytes, tally& counts) noexcept {
    if (bytes > usage_.free + usage_.held) {
      return {status::capacity_exceeded, "record", bytes, status::relation::at_most, usage_.free + usage_.held};
    }
    while (usage_.free < bytes) {
      auto const& least = **order_.begin();
      auto const key = least.key;
      clock_ = std::max(clock_, least.priority);
      move(usage_.held, usage_.free, least.bytes);
      order_.erase(order_.begin());
      table_.erase(key);
      counts.evict();
    }
    return status::ok;
  }

  void touch(record& used) noexcept {
    used.priority = clock_ + static_cast<double>(used.value) / static_cast<double>(used.bytes);
    used.last_use = ++uses_;
  }

  void pin(record& used) noexcept {
    if (used.leases++ > 0) return;
    used.place = order_.extract(&used);
    move(usage_.held, usage_.pinned, used.bytes);
  }

  void unpin(record& used) noexcept {
    if (--used.leases > 0) return;
    move(usage_.pinned, used.retired ? usage_.free : usage_.held, used.bytes);
    if (!used.retired) order_.insert(std::move(used.place));
  }

  /// Takes a leased record out of the table, so that nobody else is served from it and its key may be published anew.
  void retire(record& bad) noexcept {
    if (!std::exchange(bad.retired, true)) table_.erase(bad.key);
  }

  void end_leases() noexcept {
    std::erase_if(closing_, [&](auto const& named) {
      if (!over(named.second)) return false;
      for (auto const& one : named.second.lookups) {
        if (one.candidate) unpin(*one.candidate);
      }
      return true;
    });
  }

  static void move(std::int64_t& from, std::int64_t& to, std::int64_t bytes) noexcept {
    from -= bytes;
    to += bytes;
  }

  mutable std::mutex mutex_;
  observer* const watch_;
  store_usage usage_;
  std::unordered_map<record_key, std::shared_ptr<record>, record_key_hash> table_;
  eviction_order order_;  // of the records that nobody leases
  double clock_ = 0.0;
  std::uint64_t uses_ = 0;
  std::map<std::uint64_t, lease> open_;
  std::map<std::uint64_t, lease> closing_;  // released, the fence being ahead
  std::uint64_t last_ticket_ = 0;
};

memory_store::memory_store(std::int64_t capacity_bytes, observer* watch)
    : impl_(std::make_unique<implementation>(capacity_bytes, watch)) {}

memory_store::~memory_store() = default;

result<ticket> memory_store::begin(std::span<lookup_request const> requests) noexcept {
  return guarded([&] { return impl_->begin(requests); }, {status::backend_failure, "memory"});
}

status memory_store::poll(ticket which, std::span<lookup_result> results) noexcept {
  return impl_->poll(which, results);
}

status memory_store::publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept {
  if (outcomes.size() != requests.size()) {
    return {status::invalid_shape, "outcomes", static_cast<std::int64_t>(outcomes.size()), status::relation::equal_to,
            static_cast<std::int64_t>(requests.size())};
  }
  status first;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    outcomes[i] = guarded([&] { return impl_->publish(requests[i]); }, {status::backend_failure, "memory"});
    if (first == status::ok) first = outcomes[i];
  }
  return first;
}

status memory_store::release(ticket which, fence after) noexcept { return impl_->release(which, after); }

store_usage memory_store::usage() const noexcept { return impl_->usage(); }

}  // namespace hypic::inline v0
