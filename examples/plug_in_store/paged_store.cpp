// SPDX-License-Identifier: Apache-2.0
#include "paged_store.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

using hypic::status;

namespace {

/// No exception leaves a verb.
template <class Fn>
auto guarded(Fn fn) noexcept -> decltype(fn()) {
  try {
    return fn();
  } catch (std::bad_alloc const&) {
    return status{status::backend_failure, "memory"};
  }
}

/// Indices of the parts at `ids`, all parts where none are named; -1 for one that the layout has not.
std::vector<std::int64_t> indices_of(hypic::record_layout const& layout, std::span<hypic::part_id const> ids) {
  std::vector<std::int64_t> indices(ids.empty() ? layout.parts().size() : ids.size());
  std::iota(indices.begin(), indices.end(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) indices[i] = layout.find(ids[i]);
  return indices;
}

}  // namespace

paged_store::paged_store(std::int64_t pages, std::int64_t page_bytes)
    : page_bytes_(page_bytes),
      slab_(static_cast<std::size_t>(pages * page_bytes)),
      free_(static_cast<std::size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::int64_t paged_store::free_pages() const {
  std::lock_guard const lock(mutex_);
  return static_cast<std::int64_t>(free_.size());
}

bool paged_store::damage(hypic::record_key const& key, hypic::part_id const& part) {
  std::lock_guard const lock(mutex_);
  auto const found = records_.find(key);
  auto const index = found == records_.end() ? -1 : found->second.layout.find(part);
  if (index < 0 || !found->second.there[static_cast<std::size_t>(index)]) return false;
  bool flipped = false;
  each_piece(found->second, found->second.layout.parts()[static_cast<std::size_t>(index)],
             [&](std::byte* page, std::int64_t, std::int64_t) {
               if (!std::exchange(flipped, true)) *page ^= std::byte{1};
             });
  return true;
}

// [begin begin]
hypic::result<hypic::ticket> paged_store::begin(std::span<hypic::lookup_request const> requests) noexcept {
  if (std::ranges::any_of(requests, [](auto const& request) { return request.layout == nullptr; })) {
    return status{status::invalid_argument, "requests.layout"};
  }
  return guarded([&]() -> hypic::result<hypic::ticket> {
    std::lock_guard const lock(mutex_);
    end_leases();
    lease made;
    for (auto const& request : requests) made.answers.push_back(answer(request, made));
    auto const name = static_cast<hypic::ticket>(++last_ticket_);
    open_.emplace(name, std::move(made));
    return name;
  });
}
// [end begin]

hypic::lookup_result paged_store::answer(hypic::lookup_request const& request, lease& into) {
  auto const miss = [](hypic::miss_reason why) { return hypic::lookup_result{hypic::lookup_state::miss, why, {}}; };
  auto const found = records_.find(request.key);
  if (found == records_.end()) return miss(hypic::miss_reason::absent);
  auto& kept = found->second;
  if (!std::ranges::equal(kept.tokens, request.tokens)) return miss(hypic::miss_reason::token_mismatch);
  if (kept.layout != *request.layout) return miss(hypic::miss_reason::layout_mismatch);
  auto const wanted = indices_of(kept.layout, request.parts);
  for (auto const i : wanted)
    if (i < 0 || !kept.there[static_cast<std::size_t>(i)]) return miss(hypic::miss_reason::incomplete);

  auto& block = into.blocks.emplace_back(static_cast<std::size_t>(kept.layout.bytes()));
  for (auto const i : wanted)
    each_piece(kept, kept.layout.parts()[static_cast<std::size_t>(i)],
               [&](std::byte* page, std::int64_t at, std::int64_t count) {
                 std::memcpy(block.data() + at, page, static_cast<std::size_t>(count));
               });
  // Verified before it is used: whatever happened to the pages, a wrong byte is a miss.
  if (hypic::verify_parts(kept.layout, block, kept.digests, wanted) != status::ok) {
    free_.insert(free_.end(), kept.pages.begin(), kept.pages.end());
    records_.erase(found);
    return miss(hypic::miss_reason::corrupt);
  }
  kept.last_use = ++clock_;
  return {hypic::lookup_state::hit, hypic::miss_reason::none, block};
}

hypic::status paged_store::poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept {
  std::lock_guard const lock(mutex_);
  end_leases();
  auto const found = open_.find(which);
  if (found == open_.end()) return {status::not_found, "which"};
  auto const& answers = found->second.answers;
  if (results.size() != answers.size()) {
    return {status::invalid_shape, "results", static_cast<std::int64_t>(results.size()), status::relation::equal_to,
            static_cast<std::int64_t>(answers.size())};
  }
  std::ranges::copy(answers, results.begin());
  return status::ok;
}

hypic::status paged_store::publish(std::span<hypic::publish_request const> requests,
                                   std::span<hypic::status> outcomes) noexcept {
  if (outcomes.size() != requests.size()) return {status::invalid_shape, "outcomes"};
  std::lock_guard const lock(mutex_);
  end_leases();
  status first = status::ok;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    outcomes[i] = guarded([&] { return keep(requests[i]); });
    if (first == status::ok) first = outcomes[i];
  }
  return first;
}

hypic::status paged_store::check(hypic::publish_request const& request, std::vector<std::int64_t>& wanted) const {
  if (request.layout == nullptr) return {status::invalid_argument, "layout"};
  auto const& layout = *request.layout;
  if (request.value < 0) return {status::invalid_argument, "value", request.value, status::relation::at_least, 0};
  wanted = indices_of(layout, request.parts);
  if (std::ranges::find(wanted, -1) != wanted.end()) return {status::invalid_argument, "parts"};
  auto const equal = [](char const* name, std::size_t found, std::int64_t expected) -> status {
    auto const count = static_cast<std::int64_t>(found);
    if (count == expected) return status::ok;
    return {status::invalid_shape, name, count, status::relation::equal_to, expected};
  };
  for (auto const& outcome :
       {equal("tokens", request.tokens.size(), layout.tokens()), equal("block", request.block.size(), layout.bytes()),
        equal("digests", request.digests.size(), static_cast<std::int64_t>(layout.parts().size()))})
    if (outcome != status::ok) return outcome;
  return hypic::verify_parts(layout, request.block, request.digests, wanted);
}

// [begin keep]
hypic::status paged_store::keep(hypic::publish_request const& request) {
  std::vector<std::int64_t> wanted;
  if (auto const s = check(request, wanted); s != status::ok) return s;
  auto found = records_.find(request.key);
  if (found == records_.end()) {
    auto const pages = static_cast<std::size_t>((request.layout->bytes() + page_bytes_ - 1) / page_bytes_);
    record made{.tokens = {request.tokens.begin(), request.tokens.end()},
                .layout = *request.layout,
                .digests = {request.digests.begin(), request.digests.end()},
                .there = std::vector<bool>(request.digests.size())};
    made.pages.reserve(pages);
    if (!make_room(pages)) {
      return {status::capacity_exceeded, "pages", static_cast<std::int64_t>(pages), status::relation::at_most,
              static_cast<std::int64_t>(slab_.size()) / page_bytes_};
    }
    found = records_.emplace(request.key, std::move(made)).first;
    for (std::size_t i = 0; i < pages; ++i) {
      found->second.pages.push_back(free_.back());
      free_.pop_back();
    }
  }
  auto& kept = found->second;
  if (!std::ranges::equal(kept.tokens, request.tokens)) return {status::invalid_argument, "tokens: the key has others"};
  if (kept.layout != *request.layout) return {status::invalid_shape, "layout: the key has another"};
  for (auto const index : wanted) {
    auto const i = static_cast<std::size_t>(index);
    if (kept.there[i]) continue;  // what is there stays
    each_piece(kept, kept.layout.parts()[i], [&](std::byte* page, std::int64_t at, std::int64_t count) {
      std::memcpy(page, request.block.data() + at, static_cast<std::size_t>(count));
    });
    kept.digests[i] = request.digests[i];
    kept.there[i] = true;
  }
  kept.last_use = ++clock_;
  return status::ok;
}
// [end keep]

/// Calls fn(where in the slab, where in the block, bytes) for every page that holds some of a part.
template <class Fn>
void paged_store::each_piece(record const& of, hypic::record_part const& part, Fn fn) {
  for (auto at = part.offset; at < part.offset + part.bytes;) {
    auto const in_page = at % page_bytes_;
    auto const count = std::min(page_bytes_ - in_page, part.offset + part.bytes - at);
    auto const page = of.pages[static_cast<std::size_t>(at / page_bytes_)];
    fn(slab_.data() + page * page_bytes_ + in_page, at, count);
    at += count;
  }
}

/// Throws the least recently used records out until so many pages are free.
bool paged_store::make_room(std::size_t pages) {
  if (pages > slab_.size() / static_cast<std::size_t>(page_bytes_)) return false;
  while (free_.size() < pages) {
    auto const oldest = std::ranges::min_element(records_, {}, [](auto const& entry) { return entry.second.last_use; });
    free_.insert(free_.end(), oldest->second.pages.begin(), oldest->second.pages.end());
    records_.erase(oldest);
  }
  return true;
}

// [begin release]
hypic::status paged_store::release(hypic::ticket which, hypic::fence after) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = open_.find(which);
  if (found != open_.end()) {
    found->second.end = after;
    closing_.insert(open_.extract(found));  // moves the lease: nothing is allocated, so nothing fails
    end_leases();
    return status::ok;
  }
  end_leases();
  return {status::not_found, "which"};
}

/// Forgets the released leases whose fences have been reached; those are not asked again.
void paged_store::end_leases() {
  std::erase_if(closing_, [](auto const& named) {
    auto const& end = named.second.end;
    return end.reached == nullptr || end.reached(end.context);
  });
}
// [end release]
