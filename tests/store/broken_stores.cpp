// SPDX-License-Identifier: Apache-2.0
#include "store/broken_stores.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace hypic::test {
namespace {

/// Whether a record is one of those that fill a ninth of the store.
bool is_large(record_layout const* layout) noexcept { return layout != nullptr && layout->bytes() > 20000; }

/// A front that keeps what it was asked for, and memory of its own to answer from.
class remembers : public front {
 public:
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const which = front::begin(requests);
    if (which) {
      std::lock_guard const lock(mutex);
      requests_of[*which] = {requests.begin(), requests.end()};
    }
    return which;
  }

 protected:
  std::vector<lookup_request> asked(ticket which) {
    std::lock_guard const lock(mutex);
    auto const found = requests_of.find(which);
    return found == requests_of.end() ? std::vector<lookup_request>{} : found->second;
  }

  /// A copy of a block, the same at each poll of a ticket.
  std::span<std::byte> lend(ticket which, std::span<std::byte const> block) {
    std::lock_guard const lock(mutex);
    auto& mine = lent[which];
    if (mine.empty()) mine = bytes.emplace_back(block.begin(), block.end());
    return mine;
  }

  /// Polls the good store; calls fn(request, result) for each answer that is not pending.
  template <class Fn>
  status poll_and(ticket which, std::span<lookup_result> results, Fn fn) {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    for (std::size_t i = 0; i < results.size() && outcome == status::ok; ++i) fn(of[i], results[i]);
    return outcome;
  }
  /// The same for the hits of look-ups of one record.
  template <class Fn>
  status poll_and_lend(ticket which, std::span<lookup_result> results, Fn fn) {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (results.size() == 1 && found.state == lookup_state::hit) fn(request, found);
    });
  }
  /// Answers a hit of zeros.
  void serve_zeros(ticket which, lookup_request const& request, lookup_result& found) {
    std::vector<std::byte> const zeros(static_cast<std::size_t>(request.layout->bytes()));
    found = {lookup_state::hit, miss_reason::none, lend(which, zeros)};
  }

  std::mutex mutex;
  std::map<ticket, std::vector<lookup_request>> requests_of;
  std::map<ticket, std::span<std::byte>> lent;
  std::list<std::vector<std::byte>> bytes;
};

/// Calls fn(request, outcome) for each record of a batch that has an outcome each.
template <class Fn>
void each_outcome(std::span<publish_request const> requests, std::span<status> outcomes, Fn fn) {
  if (requests.size() != outcomes.size()) return;
  for (std::size_t i = 0; i < requests.size(); ++i) fn(requests[i], outcomes[i]);
}

/// Whether one record is published and told of.
bool is_one(std::span<publish_request const> requests, std::span<status> outcomes) noexcept {
  return requests.size() == 1 && outcomes.size() == 1;
}

constexpr lookup_result miss(miss_reason reason) noexcept { return {lookup_state::miss, reason, {}}; }

class slow_store final : public front {
 public:
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    if (outcome != status::ok) return outcome;
    std::lock_guard const lock(mutex_);
    auto const known = polls_[which]++;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (i + 3 > known) results[i] = {};
    }
    return outcome;
  }

 private:
  std::mutex mutex_;
  std::map<ticket, std::size_t> polls_;
};

// begin

struct refuses_an_empty_batch final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (requests.empty()) return status{status::invalid_argument, "requests"};
    return front::begin(requests);
  }
};

struct takes_no_layout final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (requests.size() == 1 && requests[0].layout == nullptr) return front::begin({});
    return front::begin(requests);
  }
};

struct leaves_out_what_has_no_layout final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (requests.size() > 1 && requests.back().layout == nullptr) return front::begin(requests.first(1));
    return front::begin(requests);
  }
};

struct counts_from_zero final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const named = front::begin(requests);
    if (!named || requests.size() != 1 || !at_home() || !std::exchange(first, false)) return named;
    zero = *named;
    return ticket::none;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return front::poll(which == ticket::none ? zero : which, results);
  }
  status release(ticket which, fence after) noexcept override {
    return front::release(which == ticket::none ? std::exchange(zero, ticket::none) : which, after);
  }
  bool first = true;
  ticket zero = ticket::none;  // what ticket 0 stands for until that is released
};

struct gives_one_ticket final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const named = front::begin(requests);
    if (!named || !at_home() || requests.empty() || published) return named;
    if (last != ticket::none) {
      static_cast<void>(front::release(*named));
      ++begun;
      return last;
    }
    begun = 1;
    return last = *named;
  }
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    published = true;
    return front::publish(requests, outcomes);
  }
  status release(ticket which, fence after) noexcept override {
    if (which != last || !at_home()) return front::release(which, after);
    if (--begun > 0) return status::ok;
    last = ticket::none;
    return front::release(which, after);
  }
  std::atomic<bool> published = false;  // from then on it is well
  ticket last = ticket::none;
  int begun = 0;
};

/// Its tickets are the least numbers that are free.
struct gives_tickets_again : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const named = front::begin(requests);
    if (!named) return named;
    std::lock_guard const lock(mutex);
    std::uint64_t least = 1;
    while (inner_of.contains(ticket{least})) ++least;
    inner_of[ticket{least}] = *named;
    return ticket{least};
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return front::poll(in(which), results);
  }
  status release(ticket which, fence after) noexcept override {
    auto const named = in(which);
    {
      std::lock_guard const lock(mutex);
      inner_of.erase(which);
    }
    return front::release(named, after);
  }
  ticket in(ticket which) {
    std::lock_guard const lock(mutex);
    auto const found = inner_of.find(which);
    return found == inner_of.end() ? ticket::none : found->second;
  }
  std::mutex mutex;
  std::map<ticket, ticket> inner_of;
};

/// Looks at the caller's request only when it is polled.
struct reads_requests_late final : front {
  struct late {
    std::span<lookup_request const> requests;
    ticket looked_up = ticket::none;
  };
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const named = front::begin(requests);
    if (!named) return named;
    std::lock_guard const lock(mutex);
    waiting[*named] = {requests};
    return named;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    std::lock_guard const lock(mutex);
    auto const found = waiting.find(which);
    if (found == waiting.end()) return status::not_found;
    auto& [requests, looked_up] = found->second;
    if (looked_up == ticket::none) looked_up = *front::begin(requests);
    return front::poll(looked_up, results);
  }
  status release(ticket which, fence after) noexcept override {
    std::lock_guard const lock(mutex);
    auto const found = waiting.find(which);
    if (found == waiting.end()) return status::not_found;
    auto const looked_up = found->second.looked_up;
    waiting.erase(found);
    if (looked_up == ticket::none) return front::release(which, after);
    static_cast<void>(front::release(which));
    return front::release(looked_up, after);
  }
  std::mutex mutex;
  std::map<ticket, late> waiting;
};

// poll

template <miss_reason Reason>
struct blames_the_store final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    for (auto& found : results)
      if (found.reason == Reason) found.reason = miss_reason::store_failure;
    return outcome;
  }
};

struct flips_a_byte final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (request.layout->tokens() != 64) return;
      auto const block = lend(which, found.block);
      auto const at = static_cast<std::size_t>(request.layout->parts().back().offset);
      block[at] = found.block[at] ^ std::byte{1};
      found.block = block;
    });
  }
};

struct misaligns final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const&, lookup_result& found) {
      std::vector<std::byte> shifted(found.block.size() + 1);
      std::ranges::copy(found.block, shifted.begin() + 1);
      found.block = lend(which, shifted).subspan(1);
    });
  }
};

struct takes_parts_for_ordered final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (std::ranges::is_sorted(request.parts)) return;
      auto const block = lend(which, found.block);
      auto const& part = request.layout->parts()[static_cast<std::size_t>(request.layout->find(request.parts[0]))];
      std::fill_n(block.begin() + part.offset, part.bytes, std::byte{0});
      found.block = block;
    });
  }
};

struct gives_no_single_part final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (request.parts.size() == 1) found = miss(miss_reason::incomplete);
    });
  }
};

/// Answers a miss for `Reason` with a hit.
template <miss_reason Reason>
struct ignores : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (found.reason == Reason && pardons(request)) serve_zeros(which, request, found);
    });
  }
  virtual bool pardons(lookup_request const&) const { return true; }
};
struct counts_no_tokens final : ignores<miss_reason::token_mismatch> {
  bool pardons(lookup_request const& request) const override {
    return static_cast<std::int64_t>(request.tokens.size()) < request.layout->tokens();
  }
};
struct gives_parts_that_are_none final : ignores<miss_reason::incomplete> {
  bool pardons(lookup_request const& request) const override {
    return request.parts.size() == 1 && request.layout->find(request.parts[0]) < 0;
  }
};

template <std::size_t At>
struct cuts_keys final : front {
  record_key inner_key(record_key key) const override {
    key.bytes[At] = std::byte{0};
    return key;
  }
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    std::vector<lookup_request> cut(requests.begin(), requests.end());
    for (auto& request : cut) request.key = inner_key(request.key);
    return front::begin(cut);
  }
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    std::vector<publish_request> cut(requests.begin(), requests.end());
    for (auto& request : cut) request.key = inner_key(request.key);
    return front::publish(cut, outcomes);
  }
};

struct answers_backwards final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    std::ranges::reverse(results);
    return outcome;
  }
};

struct answers_one_of_twins final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    std::set<record_key> met;
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (!met.insert(request.key).second) found = miss(miss_reason::absent);
    });
  }
};

struct gives_hits_a_reason final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    for (auto& found : results)
      if (found.state == lookup_state::hit) found.reason = miss_reason::absent;
    return outcome;
  }
};

struct gives_misses_a_block final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    static constexpr std::byte some[64]{};
    auto const outcome = front::poll(which, results);
    for (auto& found : results)
      if (found.state == lookup_state::miss) found.block = some;
    return outcome;
  }
};

/// Answers tickets in the order in which they began.
struct answers_in_turn final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const named = front::begin(requests);
    if (named && at_home()) queue.push_back(*named);
    return named;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    if (!at_home() || outcome != status::ok) return outcome;
    if (std::ranges::find(queue, which) != queue.end() && queue.front() != which)
      std::ranges::fill(results, lookup_result{});
    if (!queue.empty() && queue.front() == which) queue.pop_front();
    return outcome;
  }
  status release(ticket which, fence after) noexcept override {
    if (at_home()) queue.remove(which);
    return front::release(which, after);
  }
  std::list<ticket> queue;
};

/// Which ticket a store takes though it should not.
enum class strange : std::uint8_t { released, none, never_given };
strange kind_of(ticket which) noexcept {
  if (which == ticket::none) return strange::none;
  return which == ticket{~std::uint64_t{0}} ? strange::never_given : strange::released;
}

template <strange Kind>
struct polls final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    return outcome == status::not_found && kind_of(which) == Kind && !hits.contains(which) ? status{} : outcome;
  }
  status release(ticket which, fence after) noexcept override {
    // A hit that is released before its answer is another clause.
    lookup_result found;
    if (at_home() && front::poll(which, {&found, 1}) == status::ok && found.state == lookup_state::hit)
      hits.insert(which);
    return front::release(which, after);
  }
  std::set<ticket> hits;
};

template <bool Fewer>
struct fills_any_number final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    return outcome == status::invalid_shape && results.empty() == Fewer ? status{} : outcome;
  }
};

struct takes_hits_back final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    if (results.size() == 2 && !answered.insert(which).second) results[0] = miss(miss_reason::absent);
    return outcome;
  }
  std::set<ticket> answered;
};

struct looks_again final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (found.reason != miss_reason::absent || !at_home() || answered.insert(which).second) return;
      auto const now = *inner.begin({&request, 1});
      static_cast<void>(inner.poll(now, {&found, 1}));
      static_cast<void>(inner.release(now));
    });
  }
  std::set<ticket> answered;
};

/// One damaged record costs all that were published before it was found.
struct loses_all_when_damaged final : remembers {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    std::lock_guard const lock(mutex);
    for (auto const& request : requests) {
      lost.erase(request.key);
      published.insert(request.key);
    }
    return front::publish(requests, outcomes);
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      std::lock_guard const lock(mutex);
      if (found.reason == miss_reason::corrupt) lost = published;
      if (found.state == lookup_state::hit && lost.contains(request.key)) found = miss(miss_reason::absent);
    });
  }
  std::set<record_key> published, lost;
};

// publish

struct refuses_an_empty_publish final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (requests.empty()) return {status::invalid_argument, "requests"};
    return front::publish(requests, outcomes);
  }
};

template <bool Fewer>
struct tells_any_number final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    return outcomes.size() != requests.size() && outcomes.empty() == Fewer ? status{} : returned;
  }
};

struct keeps_what_it_cannot_tell_of final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    std::vector<status> own(requests.size());
    if (outcomes.size() != requests.size()) static_cast<void>(front::publish(requests, own));
    return returned;
  }
};

/// Keeps some of what the good store refuses with a code, and tells the truth about it.
template <status::code Refused>
struct keeps_of_the_refused : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (is_one(requests, outcomes) && outcomes[0] == Refused) keep(requests[0]);
    return returned;
  }
  virtual void keep(publish_request const& refused) = 0;
  void keep_part(publish_request refused, part_id const& id) {
    status outcome;
    refused.parts = {&id, 1};
    static_cast<void>(front::publish({&refused, 1}, {&outcome, 1}));
  }
};
struct keeps_the_good_parts final : keeps_of_the_refused<status::corrupt> {
  void keep(publish_request const& refused) override {
    for (auto const& part : refused.layout->parts()) keep_part(refused, part.id);
  }
};
struct keeps_the_corrupt final : keeps_of_the_refused<status::corrupt> {
  void keep(publish_request const& refused) override {
    auto const digests = *part_digests(*refused.layout, refused.block);
    auto mended = refused;
    mended.digests = digests;
    keep_part(mended, refused.layout->parts().back().id);
  }
};
struct keeps_known_parts final : keeps_of_the_refused<status::invalid_argument> {
  void keep(publish_request const& refused) override {
    if (!refused.parts.empty()) keep_part(refused, refused.parts[0]);
  }
};

/// Says ok to what the good store refuses with a code, and keeps nothing of it.
template <status::code Refused>
struct accepts : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (requests.size() != 1 || outcomes.size() != 1 || outcomes[0] != Refused || !pardons(requests[0]))
      return returned;
    outcomes[0] = status::ok;
    return status::ok;
  }
  virtual bool pardons(publish_request const&) const noexcept { return true; }
};
struct accepts_bad_digests final : accepts<status::corrupt> {};
bool fits(publish_request const& request) noexcept {
  auto const& layout = *request.layout;
  return request.block.size() == static_cast<std::size_t>(layout.bytes()) &&
         request.tokens.size() == static_cast<std::size_t>(layout.tokens()) &&
         request.digests.size() == layout.parts().size();
}
struct accepts_bad_shapes final : accepts<status::invalid_shape> {
  bool pardons(publish_request const& request) const noexcept override { return !fits(request); }
};
struct accepts_any_tokens final : accepts<status::invalid_shape> {
  bool pardons(publish_request const& request) const noexcept override {
    return request.tokens.size() > static_cast<std::size_t>(request.layout->tokens());
  }
};
struct accepts_another_layout final : accepts<status::invalid_shape> {
  bool pardons(publish_request const& request) const noexcept override { return fits(request); }
};
struct accepts_no_layout final : accepts<status::invalid_argument> {
  bool pardons(publish_request const& request) const noexcept override { return request.layout == nullptr; }
};
struct accepts_negative_values final : accepts<status::invalid_argument> {
  bool pardons(publish_request const& request) const noexcept override { return request.value < 0; }
};
struct accepts_strange_parts final : accepts<status::invalid_argument> {
  bool pardons(publish_request const& request) const noexcept override { return !request.parts.empty(); }
};
struct accepts_other_tokens final : accepts<status::invalid_argument> {
  bool pardons(publish_request const& request) const noexcept override {
    return request.layout != nullptr && request.value >= 0 && request.parts.empty();
  }
};
struct accepts_the_too_large final : accepts<status::capacity_exceeded> {
  bool pardons(publish_request const& request) const noexcept override {
    return request.layout->bytes() > contract_capacity;
  }
};

/// The latest bytes of a key win.
struct replaces final : remembers {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    std::lock_guard const lock(mutex);
    each_outcome(requests, outcomes, [&](publish_request const& one, status outcome) {
      if (outcome == status::ok && one.parts.empty()) latest[one.key] = {one.block.begin(), one.block.end()};
    });
    return returned;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      std::unique_lock lock(mutex);
      auto const newer = latest.find(request.key);
      if (newer == latest.end() || std::ranges::equal(newer->second, found.block)) return;
      auto const block = newer->second;
      lock.unlock();
      found.block = lend(which, block);
    });
  }
  std::map<record_key, std::vector<std::byte>> latest;
};

/// Keeps the publisher's own memory of whole records.
struct keeps_no_copy : remembers {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    std::lock_guard const lock(mutex);
    each_outcome(requests, outcomes, [&](publish_request const& one, status outcome) {
      if (outcome == status::ok && one.parts.empty()) theirs.emplace(one.key, one);
    });
    return returned;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      std::lock_guard const lock(mutex);
      auto const kept = theirs.find(request.key);
      if (found.state == lookup_state::hit && kept != theirs.end()) use(kept->second, request, found);
    });
  }
  virtual void use(publish_request const& kept, lookup_request const& request, lookup_result& found) = 0;
  std::map<record_key, publish_request> theirs;
};
struct keeps_no_copy_of_blocks final : keeps_no_copy {
  void use(publish_request const& kept, lookup_request const&, lookup_result& found) override {
    found.block = kept.block;
  }
};
struct keeps_no_copy_of_tokens final : keeps_no_copy {
  void use(publish_request const& kept, lookup_request const& request, lookup_result& found) override {
    if (!std::ranges::equal(kept.tokens, request.tokens)) found = miss(miss_reason::token_mismatch);
  }
};

struct stops_at_the_first_fault final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (requests.size() != outcomes.size()) return front::publish(requests, outcomes);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto const outcome = front::publish(requests.subspan(i, 1), outcomes.subspan(i, 1));
      if (outcome == status::ok) continue;
      std::ranges::fill(outcomes.subspan(i), outcome);
      return outcome;
    }
    return status::ok;
  }
};

struct returns_the_last_fault final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto returned = front::publish(requests, outcomes);
    for (auto const& outcome : outcomes)
      if (outcome != status::ok) returned = outcome;
    return returned;
  }
};

struct refuses_twins final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (requests.size() != 2 || outcomes.size() != 2 || requests[0].key != requests[1].key) return returned;
    return outcomes[1] = status::invalid_argument;
  }
};

struct drops_later_parts final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (requests.size() != 1 || requests[0].parts.empty() || outcomes.size() != 1)
      return front::publish(requests, outcomes);
    if (!known.insert(requests[0].key).second) return outcomes[0] = status::ok;
    return front::publish(requests, outcomes);
  }
  std::set<record_key> known;
};

/// Takes the whole block of the latest publication of some parts.
struct takes_whole_blocks final : remembers {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    std::lock_guard const lock(mutex);
    for (auto const& one : requests)
      if (returned == status::ok && !one.parts.empty()) latest[one.key] = {one.block.begin(), one.block.end()};
    return returned;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      std::unique_lock lock(mutex);
      auto const whole = latest.find(request.key);
      if (whole == latest.end()) return;
      auto const block = whole->second;
      lock.unlock();
      found.block = lend(which, block);
    });
  }
  std::map<record_key, std::vector<std::byte>> latest;
};

/// A publication that is refused takes its record away.
struct loses_what_it_refuses final : remembers {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    std::lock_guard const lock(mutex);
    each_outcome(requests, outcomes, [&](publish_request const& one, status outcome) {
      if (outcome == status::corrupt) lost.insert(one.key);
    });
    return returned;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      std::lock_guard const lock(mutex);
      if (lost.contains(request.key)) found = miss(miss_reason::absent);
    });
  }
  std::set<record_key> lost;
};

struct refuses_the_empty final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    bool const empty = is_one(requests, outcomes) && requests[0].block.empty();
    if (!empty || returned != status::ok) return returned;
    return outcomes[0] = status::invalid_shape;
  }
};

struct drops_the_empty final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (request.tokens.empty()) found = miss(miss_reason::absent);
    });
  }
};

/// What was corrupt once is there, and stays so.
struct keeps_the_damaged final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and(which, results, [&](lookup_request const& request, lookup_result& found) {
      std::lock_guard const lock(mutex);
      if (found.reason == miss_reason::corrupt) damaged.insert(request.key);
      if (damaged.contains(request.key)) found = miss(miss_reason::corrupt);
    });
  }
  std::set<record_key> damaged;
};

struct serves_rubbish_when_full final : remembers {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    for (auto const& request : requests) published += static_cast<std::int64_t>(request.block.size());
    return front::publish(requests, outcomes);
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      // From the third answer on: clauses on leases never come so far.
      if (!at_home() || !is_large(request.layout) || published < 3 * contract_capacity / 2 || ++served < 3) return;
      auto const block = lend(which, found.block);
      block[static_cast<std::size_t>(request.layout->parts().front().offset)] ^= std::byte{1};
      found.block = block;
    });
  }
  std::atomic<std::int64_t> published = 0;
  int served = 0;
};

struct gives_up_when_full final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (!at_home() || requests.size() != 1 || outcomes.size() != 1 || !is_large(requests[0].layout)) return returned;
    ++published;
    // The last of the samples, before any was looked up: the other clauses on a full store lease one first.
    if (published < 16 || begun) return returned;
    return outcomes[0] = status::backend_failure;
  }
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (at_home()) begun = true;
    return front::begin(requests);
  }
  int published = 0;
  bool begun = false;
};

// release

/// Hands out copies, and writes over those whose lease it takes for ended.
struct lends_copies : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const&, lookup_result& found) {
      if (at_home()) found.block = lend(which, found.block);
    });
  }
  status release(ticket which, fence after) noexcept override {
    if (at_home()) released.insert(which);
    return front::release(which, after);
  }
  /// Calls fn(ticket, block) for each copy that is leased.
  template <class Fn>
  void each_leased(Fn fn) {
    std::lock_guard const lock(mutex);
    for (auto const& [which, block] : lent)
      if (!released.contains(which)) fn(which, block);
  }
  static void spoil(std::span<std::byte> block) { std::ranges::fill(block, std::byte{0xee}); }
  std::set<ticket> released;
};

/// Takes the only lease's bytes back after a dozen more records.
struct evicts_leased final : lends_copies {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (at_home() && begun == 1 && ++published > 12)
      each_leased([](ticket, std::span<std::byte> block) { spoil(block); });
    return returned;
  }
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (at_home()) ++begun;
    return lends_copies::begin(requests);
  }
  int begun = 0;
  int published = 0;
};

/// Gives a leased record a new place after a dozen more records.
struct moves_leased final : lends_copies {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (at_home()) ++published;
    return front::publish(requests, outcomes);
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = lends_copies::poll(which, results);
    if (at_home() && published > 12 && results.size() == 1 && !answered.insert(which).second) {
      auto& moved = bytes.emplace_back(results[0].block.begin(), results[0].block.end());
      results[0].block = moved;
    } else if (at_home()) {
      answered.insert(which);
    }
    return outcome;
  }
  std::set<ticket> answered;
  int published = 0;
};

/// Publishes into the bytes that readers of the key lease.
struct publishes_in_place final : lends_copies {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (!at_home() || requests.size() != 1 || returned != status::ok) return returned;
    each_leased([&](ticket which, std::span<std::byte> block) {
      bool const same_key = requests_of[which][0].key == requests[0].key;
      if (same_key && block.size() == requests[0].block.size()) std::ranges::copy(requests[0].block, block.begin());
    });
    return returned;
  }
};

struct ignores_fences final : lends_copies {
  status release(ticket which, fence after) noexcept override {
    if (after.reached != nullptr && !after.reached(after.context)) spoil(lent[which]);
    return lends_copies::release(which, {});
  }
};

struct asks_again final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (at_home())
      for (auto const& one : fences) static_cast<void>(one.reached(one.context));
    return front::publish(requests, outcomes);
  }
  status release(ticket which, fence after) noexcept override {
    if (at_home() && after.reached != nullptr) fences.push_back(after);
    return front::release(which, after);
  }
  std::vector<fence> fences;
};

/// A release ends every lease there is on the record.
struct ends_all_leases final : lends_copies {
  status release(ticket which, fence after) noexcept override {
    auto const outcome = lends_copies::release(which, after);
    if (!at_home() || outcome != status::ok || requests_of[which].size() != 1) return outcome;
    each_leased([&](ticket other, std::span<std::byte> block) {
      if (requests_of[other][0].key == requests_of[which][0].key) spoil(block);
    });
    return outcome;
  }
};

template <strange Kind>
struct releases final : front {
  status release(ticket which, fence after) noexcept override {
    auto const outcome = front::release(which, after);
    return outcome == status::not_found && kind_of(which) == Kind ? status{} : outcome;
  }
};

/// Releases what it has answered, and no hit before.
struct waits_for_answers final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    if (at_home()) answered.insert(which);
    return front::poll(which, results);
  }
  status release(ticket which, fence after) noexcept override {
    lookup_result found;
    bool const early = at_home() && !answered.contains(which) && front::poll(which, {&found, 1}) == status::ok &&
                       found.state == lookup_state::hit;
    return early ? status{status::invalid_argument, "which"} : front::release(which, after);
  }
  std::set<ticket> answered;
};

/// Answers a look-up that was released before its answer.
struct answers_after_all final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    if (at_home()) answered.insert(which);
    auto const outcome = front::poll(which, results);
    return outcome == status::not_found && at_home() && early.contains(which) ? status{} : outcome;
  }
  status release(ticket which, fence after) noexcept override {
    if (at_home() && !answered.contains(which)) early.insert(which);
    return front::release(which, after);
  }
  std::set<ticket> answered, early;
};

/// Never passes some releases of large records on.
template <bool Fenced>
struct leaks_leases final : remembers {
  status release(ticket which, fence after) noexcept override {
    auto const of = asked(which);
    bool const large = of.size() == 1 && is_large(of[0].layout);
    if (!at_home() || !large || (after.reached != nullptr) != Fenced) return front::release(which, after);
    return released.insert(which).second ? status::ok : status::not_found;
  }
  std::set<ticket> released;
};

// any

struct knows_one_thread final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (!at_home() && !is_large(requests[0].layout)) return status{status::backend_failure, "thread"};
    return front::begin(requests);
  }
};

struct mixes_threads_up_when_full final : remembers {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_and_lend(which, results, [&](lookup_request const& request, lookup_result& found) {
      if (at_home() || !is_large(request.layout)) return;
      auto const block = lend(which, found.block);
      block[static_cast<std::size_t>(request.layout->parts().front().offset)] ^= std::byte{1};
      found.block = block;
    });
  }
};

template <class Store>
std::unique_ptr<cache_store> make(void*) {
  return std::make_unique<Store>();
}

using enum miss_reason;

constexpr broken_store table[] = {
    {"begin", "refuses an empty batch", "a batch may be empty", make<refuses_an_empty_batch>},
    {"begin", "takes a request without a layout", "a request without a layout is refused", make<takes_no_layout>},
    {"begin", "leaves it out of a batch", "a request without a layout is refused", make<leaves_out_what_has_no_layout>},
    {"begin", "gives ticket 0", "each look-up has a ticket of its own", make<counts_from_zero>},
    {"begin", "gives two look-ups one ticket", "each look-up has a ticket of its own", make<gives_one_ticket>},
    {"begin", "gives released tickets again", "no ticket is given twice", make<gives_tickets_again>},
    {"begin", "reads the request later", "requests are copied", make<reads_requests_late>},

    {"poll", "gives no reason", "what nobody published is a miss: absent", make<blames_the_store<absent>>},
    {"poll", "flips a byte", "a hit has the bytes that were published", make<flips_a_byte>},
    {"poll", "gives odd addresses", "a block is aligned for float", make<misaligns>},
    {"poll", "takes parts for ordered", "parts may be asked for in any order and number",
     make<takes_parts_for_ordered>},
    {"poll", "gives no single part", "parts may be asked for in any order and number", make<gives_no_single_part>},
    {"poll", "gives parts that are not there", "a record without a part that is asked for is a miss: incomplete",
     make<ignores<incomplete>>},
    {"poll", "gives parts that are none", "a record without a part that is asked for is a miss: incomplete",
     make<gives_parts_that_are_none>},
    {"poll", "says something else of them", "a record without a part that is asked for is a miss: incomplete",
     make<blames_the_store<incomplete>>},
    {"poll", "compares no tokens", "other tokens under a key are a miss: token mismatch",
     make<ignores<token_mismatch>>},
    {"poll", "does not count tokens", "other tokens under a key are a miss: token mismatch", make<counts_no_tokens>},
    {"poll", "compares no layouts", "another layout under a key is a miss: layout mismatch",
     make<ignores<layout_mismatch>>},
    {"poll", "leaves a key's first byte out", "keys are compared whole", make<cuts_keys<0>>},
    {"poll", "leaves a key's last byte out", "keys are compared whole", make<cuts_keys<31>>},
    {"poll", "answers backwards", "answers come in the order of the requests", make<answers_backwards>},
    {"poll", "answers one of twins", "a record may stand in a batch several times", make<answers_one_of_twins>},
    {"poll", "gives a hit a reason", "a hit has a block, a miss a reason", make<gives_hits_a_reason>},
    {"poll", "gives a miss a block", "a hit has a block, a miss a reason", make<gives_misses_a_block>},
    {"poll", "answers in turn", "an answer waits for no other ticket", make<answers_in_turn>},
    {"poll", "takes a released ticket", "a ticket that is unknown or released is refused",
     make<polls<strange::released>>},
    {"poll", "takes ticket 0", "a ticket that is unknown or released is refused", make<polls<strange::none>>},
    {"poll", "takes an unknown ticket", "a ticket that is unknown or released is refused",
     make<polls<strange::never_given>>},
    {"poll", "fills no results", "another number of results than of requests is refused", make<fills_any_number<true>>},
    {"poll", "fills more results", "another number of results than of requests is refused",
     make<fills_any_number<false>>},
    {"poll", "takes a hit back", "an answer does not change", make<takes_hits_back>},
    {"poll", "looks again after a miss", "an answer does not change", make<looks_again>},
    {"poll", "serves damaged bytes", "damaged bytes are a miss of their record alone: corrupt", make<ignores<corrupt>>},
    {"poll", "says something else of them", "damaged bytes are a miss of their record alone: corrupt",
     make<blames_the_store<corrupt>>},
    {"poll", "loses all with them", "damaged bytes are a miss of their record alone: corrupt",
     make<loses_all_when_damaged>},

    {"publish", "refuses an empty batch", "a batch may be empty", make<refuses_an_empty_publish>},
    {"publish", "tells of none", "another number of outcomes than of requests is refused",
     make<tells_any_number<true>>},
    {"publish", "tells of more", "another number of outcomes than of requests is refused",
     make<tells_any_number<false>>},
    {"publish", "keeps what it cannot tell of", "another number of outcomes than of requests is refused",
     make<keeps_what_it_cannot_tell_of>},
    {"publish", "checks no digest", "a digest that does not fit is refused, with its record",
     make<accepts_bad_digests>},
    {"publish", "keeps the good parts", "a digest that does not fit is refused, with its record",
     make<keeps_the_good_parts>},
    {"publish", "keeps the corrupt part", "a digest that does not fit is refused, with its record",
     make<keeps_the_corrupt>},
    {"publish", "checks no sizes", "bytes, digests and tokens that do not fit the layout are refused",
     make<accepts_bad_shapes>},
    {"publish", "takes tokens too many", "bytes, digests and tokens that do not fit the layout are refused",
     make<accepts_any_tokens>},
    {"publish", "takes no layout", "arguments without meaning are refused", make<accepts_no_layout>},
    {"publish", "takes a negative value", "arguments without meaning are refused", make<accepts_negative_values>},
    {"publish", "takes parts that are none", "arguments without meaning are refused", make<accepts_strange_parts>},
    {"publish", "keeps the others of them", "arguments without meaning are refused", make<keeps_known_parts>},
    {"publish", "replaces", "what is there stays as it is", make<replaces>},
    {"publish", "takes other tokens", "other tokens under a known key are refused", make<accepts_other_tokens>},
    {"publish", "takes another layout", "another layout under a known key is refused", make<accepts_another_layout>},
    {"publish", "keeps the caller's block", "everything is copied", make<keeps_no_copy_of_blocks>},
    {"publish", "keeps the caller's tokens", "everything is copied", make<keeps_no_copy_of_tokens>},
    {"publish", "stops at the first fault", "each record of a batch has its own outcome",
     make<stops_at_the_first_fault>},
    {"publish", "returns the last fault", "each record of a batch has its own outcome", make<returns_the_last_fault>},
    {"publish", "refuses twins", "a record may stand in a batch several times", make<refuses_twins>},
    {"publish", "drops later parts", "parts that are published apart make one record", make<drops_later_parts>},
    {"publish", "takes whole blocks", "parts that are published apart make one record", make<takes_whole_blocks>},
    {"publish", "loses what it refuses", "a refusal takes nothing away", make<loses_what_it_refuses>},
    {"publish", "refuses an empty record", "a record without tokens is kept", make<refuses_the_empty>},
    {"publish", "drops an empty record", "a record without tokens is kept", make<drops_the_empty>},
    {"publish", "keeps the damaged", "what was found corrupt may be published anew", make<keeps_the_damaged>},
    {"publish", "takes the too large", "what is larger than the store is refused", make<accepts_the_too_large>},
    {"publish", "serves rubbish when full", "a full store serves the right bytes or none",
     make<serves_rubbish_when_full>},
    {"publish", "fails when full", "a full store serves the right bytes or none", make<gives_up_when_full>},

    {"release", "evicts leased bytes", "leased bytes stay where they are", make<evicts_leased>},
    {"release", "moves leased bytes", "leased bytes stay where they are", make<moves_leased>},
    {"release", "publishes in place", "leased bytes stay though their key is published again",
     make<publishes_in_place>},
    {"release", "ignores the fence", "bytes stay until the fence is reached", make<ignores_fences>},
    {"release", "asks the fence again", "a fence that was reached is asked no more", make<asks_again>},
    {"release", "ends all leases of a record", "one lease ends without another", make<ends_all_leases>},
    {"release", "takes a released ticket", "a ticket is released once", make<releases<strange::released>>},
    {"release", "takes ticket 0", "a ticket is released once", make<releases<strange::none>>},
    {"release", "takes an unknown ticket", "a ticket is released once", make<releases<strange::never_given>>},
    {"release", "waits for the answer", "a look-up may be released before its answer", make<waits_for_answers>},
    {"release", "leaves it open", "a look-up may be released before its answer", make<answers_after_all>},
    {"release", "leaks", "released bytes make room", make<leaks_leases<false>>},
    {"release", "leaks behind a fence", "bytes make room once the fence is reached", make<leaks_leases<true>>},

    {"any", "answers one thread", "any thread may call any verb", make<knows_one_thread>},
    {"any", "mixes threads up", "any thread may call any verb of a full store", make<mixes_threads_up_when_full>},
};

}  // namespace

std::unique_ptr<cache_store> make_slow_store() { return std::make_unique<slow_store>(); }

std::span<broken_store const> broken_stores() { return table; }

}  // namespace hypic::test
