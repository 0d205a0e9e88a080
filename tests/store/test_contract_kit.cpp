// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hypic/store/contract_kit.hpp"
#include "hypic/store/memory_store.hpp"

using namespace hypic;

namespace {

constexpr std::int64_t capacity = 512 * 1024;

// A store in front of a good one, with no fault of its own. Each broken store below overrides one verb.
class front : public cache_store {
 public:
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override { return inner.begin(requests); }
  status poll(ticket which, std::span<lookup_result> results) noexcept override { return inner.poll(which, results); }
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    return inner.publish(requests, outcomes);
  }
  status release(ticket which, fence after = {}) noexcept override { return inner.release(which, after); }

 protected:
  memory_store inner{capacity};
};

// Gives each answer only at the fourth poll.
class slow_store final : public front {
 public:
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    std::lock_guard const lock(mutex_);
    if (polls_[which]++ % 4 < 3 && !answered_.contains(which)) {
      auto const outcome = front::poll(which, results);
      std::ranges::fill(results, lookup_result{});
      return outcome;
    }
    answered_.insert(which);
    return front::poll(which, results);
  }

 private:
  std::mutex mutex_;
  std::map<ticket, int> polls_;
  std::set<ticket> answered_;
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

// Its first ticket is the one that is none.
struct counts_from_zero final : front {
  static ticket down(ticket of) noexcept { return static_cast<ticket>(static_cast<std::uint64_t>(of) - 1); }
  static ticket up(ticket of) noexcept { return static_cast<ticket>(static_cast<std::uint64_t>(of) + 1); }
  bool first = true;
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    auto const inner_ticket = front::begin(requests);
    auto const probe = requests.size() == 1 && std::exchange(first, false);
    if (!probe || !inner_ticket) return inner_ticket;
    zero = *inner_ticket;
    return ticket::none;
  }
  // Ticket none stands for the first look-up until that is released.
  ticket zero = ticket::none;
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return front::poll(which == ticket::none ? zero : which, results);
  }
  status release(ticket which, fence after) noexcept override {
    return front::release(which == ticket::none ? std::exchange(zero, ticket::none) : which, after);
  }
};

// poll

// What a broken store answers is kept here: requests by ticket, and bytes of its own.
struct remembers_requests : front {
  std::mutex mutex;
  std::map<ticket, std::vector<lookup_request>> requests_of;
  std::list<std::vector<std::byte>> bytes;
  result<ticket> begin(std::span<lookup_request const> asked) noexcept override {
    auto const which = front::begin(asked);
    if (which) {
      std::lock_guard const lock(mutex);
      requests_of[*which] = {asked.begin(), asked.end()};
    }
    return which;
  }
  std::vector<lookup_request> asked(ticket which) {
    std::lock_guard const lock(mutex);
    return requests_of[which];
  }
  std::span<std::byte> copy(std::span<std::byte const> of) {
    std::lock_guard const lock(mutex);
    return bytes.emplace_back(of.begin(), of.end());
  }
  // One copy a ticket: an answer does not change.
  std::map<ticket, std::span<std::byte>> lent;
  std::span<std::byte> lend(ticket which, std::span<std::byte const> of) {
    std::lock_guard const lock(mutex);
    auto& mine = lent[which];
    if (mine.empty()) mine = bytes.emplace_back(of.begin(), of.end());
    return mine;
  }
  void serve_zeros(lookup_request const& request, lookup_result& result) {
    auto const block = copy(std::vector<std::byte>(static_cast<std::size_t>(request.layout->bytes())));
    result = {lookup_state::hit, miss_reason::none, block};
  }
  // Answers a miss for `reason` with a hit.
  status poll_ignoring(miss_reason reason, ticket which, std::span<lookup_result> results) {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    for (std::size_t i = 0; i < results.size() && outcome == status::ok; ++i)
      if (results[i].reason == reason) serve_zeros(of[i], results[i]);
    return outcome;
  }
};

struct flips_a_byte final : remembers_requests {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    if (outcome != status::ok || results.size() != 1 || results[0].state != lookup_state::hit) return outcome;
    // Of small records asked for whole by one thread: full stores, parts and threads are other clauses.
    if (!of[0].parts.empty() || of[0].layout->bytes() > 20000 || std::this_thread::get_id() != maker) return outcome;
    auto const block = lend(which, results[0].block);
    auto const at = static_cast<std::size_t>(of[0].layout->parts().back().offset);
    block[at] = results[0].block[at] ^ std::byte{1};
    results[0].block = block;
    return outcome;
  }
  std::thread::id maker = std::this_thread::get_id();
};

struct forgets_parts final : remembers_requests {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    if (outcome != status::ok || results.size() != 1 || results[0].state != lookup_state::hit) return outcome;
    if (of[0].parts.size() < 2) return outcome;
    auto const block = copy(results[0].block);
    auto const& part = of[0].layout->parts()[static_cast<std::size_t>(of[0].layout->find(of[0].parts[1]))];
    std::fill_n(block.begin() + part.offset, part.bytes, std::byte{0});
    results[0].block = block;
    return outcome;
  }
};

struct blames_the_store final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    for (auto& result : results)
      if (result.reason == miss_reason::absent) result.reason = miss_reason::store_failure;
    return outcome;
  }
};

template <miss_reason Reason>
struct ignores final : remembers_requests {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    return poll_ignoring(Reason, which, results);
  }
};

struct cuts_keys_short final : front {
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    std::vector<lookup_request> cut(requests.begin(), requests.end());
    for (auto& request : cut) request.key.bytes.back() = std::byte{0};
    return front::begin(cut);
  }
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    std::vector<publish_request> cut(requests.begin(), requests.end());
    for (auto& request : cut) request.key.bytes.back() = std::byte{0};
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

struct polls_anything final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    return outcome == status::not_found ? status{status::ok} : outcome;
  }
};

struct fills_any_number final : front {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    return outcome == status::invalid_shape ? status{status::ok} : outcome;
  }
};

struct changes_its_mind final : front {
  std::mutex mutex;
  std::set<ticket> answered;
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    std::lock_guard const lock(mutex);
    if (!answered.insert(which).second)
      std::ranges::fill(results, lookup_result{.state = lookup_state::miss, .reason = miss_reason::absent});
    return outcome;
  }
};

// publish

// Says ok to what the good store refuses with a code, and keeps nothing of it.
template <status::code Refused>
struct accepts : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    if (requests.size() != 1 || outcomes[0] != Refused || !pardons(requests[0])) return returned;
    outcomes[0] = status::ok;
    return status::ok;
  }
  virtual bool pardons(publish_request const&) noexcept { return true; }
};
struct accepts_bad_digests final : accepts<status::corrupt> {};
struct accepts_bad_shapes final : accepts<status::invalid_shape> {};
struct accepts_negative_values final : accepts<status::invalid_argument> {
  bool pardons(publish_request const& request) noexcept override { return request.value < 0; }
};
struct accepts_other_tokens final : accepts<status::invalid_argument> {
  bool pardons(publish_request const& request) noexcept override {
    return request.layout != nullptr && request.value >= 0 && request.parts.empty();
  }
};

// The latest bytes of a key win.
struct replaces final : remembers_requests {
  std::map<record_key, std::vector<std::byte>> latest;
  status publish(std::span<publish_request const> asked, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(asked, outcomes);
    std::lock_guard const lock(mutex);
    for (std::size_t i = 0; i < asked.size(); ++i)
      if (outcomes[i] == status::ok && asked[i].parts.empty())
        latest[asked[i].key] = {asked[i].block.begin(), asked[i].block.end()};
    return returned;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    std::lock_guard const lock(mutex);
    for (std::size_t i = 0; i < results.size() && outcome == status::ok; ++i) {
      auto const found = latest.find(of[i].key);
      // One copy a hit, as the good store's block may not be touched.
      if (results[i].state == lookup_state::hit && found != latest.end() &&
          !std::ranges::equal(found->second, results[i].block)) {
        auto& mine = lent[which];
        if (mine.empty()) mine = bytes.emplace_back(found->second);
        results[i].block = mine;
      }
    }
    return outcome;
  }
};

// Serves the publisher's own memory.
struct keeps_no_copy final : remembers_requests {
  std::map<record_key, std::span<std::byte const>> theirs;
  status publish(std::span<publish_request const> asked, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(asked, outcomes);
    std::lock_guard const lock(mutex);
    for (std::size_t i = 0; i < asked.size(); ++i)
      if (outcomes[i] == status::ok) theirs.emplace(asked[i].key, asked[i].block);
    return returned;
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    std::lock_guard const lock(mutex);
    for (std::size_t i = 0; i < results.size() && outcome == status::ok; ++i)
      if (results[i].state == lookup_state::hit) results[i].block = theirs[of[i].key];
    return outcome;
  }
};

struct stops_at_the_first_fault final : front {
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto const outcome = front::publish(requests.subspan(i, 1), outcomes.subspan(i, 1));
      if (outcome == status::ok) continue;
      std::ranges::fill(outcomes.subspan(i), outcome);
      return outcome;
    }
    return status::ok;
  }
};

// Takes a record's parts once.
struct drops_later_parts final : front {
  std::mutex mutex;
  std::set<record_key> known;
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    std::lock_guard const lock(mutex);
    auto const later =
        std::ranges::any_of(requests, [&](auto const& r) { return known.contains(r.key) && !r.parts.empty(); });
    if (!later) {
      auto const returned = front::publish(requests, outcomes);
      for (std::size_t i = 0; i < requests.size(); ++i)
        if (outcomes[i] == status::ok) known.insert(requests[i].key);
      return returned;
    }
    std::ranges::fill(outcomes, status::ok);
    return status::ok;
  }
};

// Writes over what it hands out once it has been full.
struct serves_rubbish_when_full final : remembers_requests {
  std::atomic<std::int64_t> published = 0;
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    for (auto const& request : requests) published += static_cast<std::int64_t>(request.block.size());
    return front::publish(requests, outcomes);
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    auto const of = asked(which);
    for (std::size_t i = 0; i < results.size() && outcome == status::ok; ++i) {
      // The last of many records alone: clauses on leases never come so far.
      if (results[i].state == lookup_state::hit && published > 3 * capacity / 2 && of[i].layout->bytes() > 20000 &&
          ++served > 2) {
        auto const block = copy(results[i].block);
        block[static_cast<std::size_t>(of[i].layout->parts().front().offset)] ^= std::byte{1};
        results[i].block = block;
      }
    }
    return outcome;
  }
  int served = 0;
};

// release

// Hands out copies, and writes over those whose lease it takes for ended.
struct lends_copies : remembers_requests {
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    auto const outcome = front::poll(which, results);
    if (outcome != status::ok || results.size() != 1 || results[0].state != lookup_state::hit) return outcome;
    results[0].block = lend(which, results[0].block);
    return outcome;
  }
  void spoil(ticket which) {
    std::lock_guard const lock(mutex);
    std::ranges::fill(lent[which], std::byte{0xee});
  }
};

// Takes bytes back after a dozen more records, leased or not.
struct evicts_leased final : lends_copies {
  std::atomic<int> published = 0;
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    auto const returned = front::publish(requests, outcomes);
    published += static_cast<int>(requests.size());
    std::vector<ticket> all;
    {
      std::lock_guard const lock(mutex);
      for (auto const& [which, block] : lent)
        if (!released.contains(which) && leases == 1) all.push_back(which);
    }
    if (published > 12)
      for (auto const which : all) spoil(which);
    return returned;
  }
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    ++leases;
    return lends_copies::begin(requests);
  }
  status release(ticket which, fence after) noexcept override {
    std::lock_guard const lock(mutex);
    released.insert(which);
    return front::release(which, after);
  }
  std::atomic<int> leases = 0;
  std::set<ticket> released;
};

struct ignores_fences final : lends_copies {
  status release(ticket which, fence after) noexcept override {
    if (after.reached != nullptr && !after.reached(after.context)) spoil(which);
    return front::release(which, {});
  }
};

// A release ends every lease there is on the record.
struct ends_all_leases final : lends_copies {
  status release(ticket which, fence after) noexcept override {
    auto const of = asked(which);
    std::vector<ticket> others;
    {
      std::lock_guard const lock(mutex);
      released.insert(which);
      for (auto const& [other, block] : lent)
        if (!released.contains(other) && of.size() == 1 && requests_of[other][0].key == of[0].key)
          others.push_back(other);
    }
    auto const outcome = front::release(which, after);
    if (std::this_thread::get_id() == maker)
      for (auto const other : others) spoil(other);
    return outcome;
  }
  std::set<ticket> released;
  std::thread::id maker = std::this_thread::get_id();
};

struct releases_twice final : front {
  status release(ticket which, fence after) noexcept override {
    auto const outcome = front::release(which, after);
    return outcome == status::not_found ? status{status::ok} : outcome;
  }
};

// Never passes a release of a large record on.
struct leaks_leases final : remembers_requests {
  std::set<ticket> released;
  status release(ticket which, fence after) noexcept override {
    auto const of = asked(which);
    bool const keep = of.size() == 1 && of[0].layout != nullptr && of[0].layout->bytes() > 20000;
    std::lock_guard const lock(mutex);
    if (!keep || after.reached != nullptr) return front::release(which, after);
    return released.insert(which).second ? status::ok : status::not_found;
  }
};

// Answers the thread that made it, and no other.
struct knows_one_thread final : front {
  std::thread::id maker = std::this_thread::get_id();
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (std::this_thread::get_id() != maker) return status{status::backend_failure, "thread"};
    return front::begin(requests);
  }
};

struct broken_store {
  char const* verb;
  char const* clause;
  std::unique_ptr<cache_store> (*make)(void*);
};

template <class Store>
std::unique_ptr<cache_store> make(void*) {
  return std::make_unique<Store>();
}

// Each store beside the clause that its one fault breaks.
broken_store const broken_stores[] = {
    {"begin", "a batch may be empty", make<refuses_an_empty_batch>},
    {"begin", "a request without a layout is refused", make<takes_no_layout>},
    {"begin", "each look-up has a ticket of its own", make<counts_from_zero>},
    {"poll", "what nobody published is a miss: absent", make<blames_the_store>},
    {"poll", "a hit has the bytes that were published", make<flips_a_byte>},
    {"poll", "parts may be asked for in any order and number", make<forgets_parts>},
    {"poll", "a record without a part that is asked for is a miss: incomplete", make<ignores<miss_reason::incomplete>>},
    {"poll", "other tokens under a key are a miss: token mismatch", make<ignores<miss_reason::token_mismatch>>},
    {"poll", "another layout under a key is a miss: layout mismatch", make<ignores<miss_reason::layout_mismatch>>},
    {"poll", "keys are compared whole", make<cuts_keys_short>},
    {"poll", "answers come in the order of the requests", make<answers_backwards>},
    {"poll", "a ticket that is unknown or released is refused", make<polls_anything>},
    {"poll", "another number of results than of requests is refused", make<fills_any_number>},
    {"poll", "an answer does not change", make<changes_its_mind>},
    {"publish", "a digest that does not fit is refused", make<accepts_bad_digests>},
    {"publish", "bytes, digests and tokens that do not fit the layout are refused", make<accepts_bad_shapes>},
    {"publish", "arguments without meaning are refused", make<accepts_negative_values>},
    {"publish", "what is there stays as it is", make<replaces>},
    {"publish", "other tokens under a known key are refused", make<accepts_other_tokens>},
    {"publish", "everything is copied", make<keeps_no_copy>},
    {"publish", "each record of a batch has its own outcome", make<stops_at_the_first_fault>},
    {"publish", "parts that are published apart make one record", make<drops_later_parts>},
    {"publish", "a full store serves the right bytes or none", make<serves_rubbish_when_full>},
    {"release", "leased bytes stay", make<evicts_leased>},
    {"release", "bytes stay until the fence is reached", make<ignores_fences>},
    {"release", "one lease ends without another", make<ends_all_leases>},
    {"release", "a ticket is released once", make<releases_twice>},
    {"release", "released bytes make room", make<leaks_leases>},
    {"release", "any thread may call any verb", make<knows_one_thread>},
};

std::vector<clause_report> check(std::unique_ptr<cache_store> (*maker)(void*), std::int64_t bytes = capacity) {
  auto reports = check_store_contract({.make = maker, .capacity_bytes = bytes});
  REQUIRE(reports);
  return std::move(reports).value();
}

std::vector<std::string> broken_clauses(std::vector<clause_report> const& reports) {
  std::vector<std::string> broken;
  for (auto const& report : reports) {
    if (report.outcome != clause_outcome::broken) continue;
    broken.push_back(std::string(report.verb) + ": " + report.clause);
    UNSCOPED_INFO(broken.back() + " - " + report.found);
    CHECK_FALSE(report.found.empty());
  }
  return broken;
}

}  // namespace

TEST_CASE("The memory store keeps every clause of the contract", "[store][contract][case-21][case-27]") {
  auto const reports =
      check([](void*) -> std::unique_ptr<cache_store> { return std::make_unique<memory_store>(capacity); });
  CHECK(broken_clauses(reports).empty());
  CHECK(std::ranges::all_of(reports, [](auto const& report) { return report.outcome == clause_outcome::kept; }));
}

TEST_CASE("A store that answers late keeps every clause too", "[store][contract]") {
  CHECK(broken_clauses(check(make<slow_store>)).empty());
}

TEST_CASE("Each broken store breaks the clause that names its fault, and no other", "[store][contract]") {
  for (auto const& store : broken_stores) {
    auto const named = std::string(store.verb) + ": " + store.clause;
    CAPTURE(named);
    CHECK(broken_clauses(check(store.make)) == std::vector<std::string>{named});
  }
}

TEST_CASE("Every clause has a store that breaks it", "[store][contract]") {
  std::vector<std::string> clauses, faults;
  for (auto const& report : check(make<front>)) clauses.emplace_back(report.clause);
  for (auto const& store : broken_stores) faults.emplace_back(store.clause);
  CHECK(clauses == faults);
}

TEST_CASE("Clauses on a full store are skipped, and say so, where its size is not known", "[store][contract]") {
  auto const reports = check(make<front>, 0);
  auto const skipped =
      std::ranges::count_if(reports, [](auto const& r) { return r.outcome == clause_outcome::skipped; });
  CHECK(skipped == 5);
  for (auto const& report : reports)
    if (report.outcome == clause_outcome::skipped) CHECK(report.found == "capacity_bytes is not known");
}

TEST_CASE("The kit refuses what it cannot work with", "[store][contract]") {
  CHECK(check_store_contract({}).error() == status::invalid_argument);
  CHECK(check_store_contract({.make = make<front>, .capacity_bytes = 1000}).error() == status::invalid_argument);
  CHECK(check_store_contract({.make = make<front>, .threads = 1}).error() == status::invalid_argument);
  auto const none = check([](void*) { return std::unique_ptr<cache_store>(); });
  CHECK(std::ranges::all_of(none, [](auto const& r) { return r.outcome == clause_outcome::broken; }));
}
