// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/contract_kit.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t least_capacity = 256 * 1024;

/// Two layers with parts of every kind; the second model's records are laid out differently.
model_layout sample_model(std::int32_t value_dim = 4) {
  linear_layer linear;
  linear.family = family_id::gated_deltanet;
  linear.dims = {.key_heads = 2, .value_heads = 2, .key_dim = 4, .value_dim = value_dim};
  linear.tail_rows = 3;
  linear.tail_channels = 16;
  linear.tail_groups = 2;
  attention_layer attention{.query_heads = 2, .kv_heads = 2, .key_dim = 4, .value_dim = 4};
  return {.layers = {linear, attention}, .head_rows = 8};
}

/// A record as a host would publish it. Equal seeds give equal bytes.
struct sample {
  record_key key{};
  std::vector<std::int32_t> tokens;
  record_layout layout;
  std::vector<std::byte> block;
  std::vector<digest> digests;

  explicit sample(unsigned seed, std::int64_t count = 20) : tokens(static_cast<std::size_t>(count)) {
    std::mt19937 random(seed);
    for (auto& byte : key.bytes) byte = static_cast<std::byte>(random());
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(seed));
    layout = record_layout::make(sample_model(), count).value();
    block.resize(static_cast<std::size_t>(layout.bytes()));
    for (auto& byte : block) byte = static_cast<std::byte>(random());
    digest_block();
  }

  void digest_block() { digests = part_digests(layout, block).value(); }
  lookup_request lookup(std::span<part_id const> parts = {}) const { return {key, tokens, &layout, parts}; }
  publish_request publish(std::span<part_id const> parts = {}) const {
    return {key, tokens, &layout, block, digests, parts, 1};
  }
  std::vector<part_id> parts() const {
    std::vector<part_id> ids;
    for (auto const& part : layout.parts()) ids.push_back(part.id);
    return ids;
  }
  /// Whether the bytes of the parts at `ids` in `found` are this sample's.
  bool same_parts(std::span<std::byte const> found, std::span<part_id const> ids) const {
    return found.size() == block.size() && std::ranges::all_of(ids, [&](part_id const& id) {
             auto const& part = layout.parts()[static_cast<std::size_t>(layout.find(id))];
             return std::memcmp(found.data() + part.offset, block.data() + part.offset,
                                static_cast<std::size_t>(part.bytes)) == 0;
           });
  }
};

/// One clause's store and what it found wrong first.
class trial {
 public:
  trial(store_under_test const& subject, cache_store& store) : subject_(subject), store_(store) {}

  store_under_test const& subject() const noexcept { return subject_; }
  cache_store& store() const noexcept { return store_; }
  bool broken() const noexcept { return !found_.empty(); }
  std::string take_found() noexcept { return std::move(found_); }

  void expect(bool holds, std::string const& otherwise) {
    if (!holds && found_.empty()) found_ = otherwise;
  }
  void expect(status outcome, status::code wanted, std::string const& of) {
    expect(outcome == wanted, of + ": " + message(outcome) + "; expected " + message(wanted));
  }

  status publish(publish_request const& request) {
    status outcome;
    auto const returned = store_.publish({&request, 1}, {&outcome, 1});
    expect(returned == outcome,
           "publish of one record returned " + message(returned) + ", its outcome being " + message(outcome));
    return outcome;
  }
  void publish_well(publish_request const& request) { expect(publish(request), status::ok, "publish of a record"); }

  ticket begin(std::span<lookup_request const> requests) {
    auto const begun = store_.begin(requests);
    expect(begun.error(), status::ok, "begin");
    return begun ? *begun : ticket::none;
  }
  /// Polls until no answer is pending.
  std::vector<lookup_result> poll(ticket which, std::size_t count) {
    std::vector<lookup_result> results(count);
    for (std::int64_t i = 0; i < subject_.most_polls && !broken(); ++i) {
      expect(store_.poll(which, results), status::ok, "poll");
      if (std::ranges::none_of(results, [](auto const& r) { return r.state == lookup_state::pending; })) return results;
      std::this_thread::yield();
    }
    expect(false, "an answer is pending after " + std::to_string(subject_.most_polls) + " polls");
    return std::vector<lookup_result>(count);
  }
  void release(ticket which, fence after = {}) { expect(store_.release(which, after), status::ok, "release"); }

  lookup_result look_up(lookup_request const& request, ticket* lease = nullptr) {
    auto const which = begin({&request, 1});
    auto const found = poll(which, 1).front();
    if (lease != nullptr) {
      *lease = which;
    } else {
      release(which);
    }
    return found;
  }
  void expect_hit(lookup_request const& request, std::string const& of) {
    auto const found = look_up(request);
    expect(found.state == lookup_state::hit, of + " is a miss (" + to_string(found.reason) + "); expected a hit");
  }
  void expect_miss(lookup_request const& request, miss_reason why, std::string const& of) {
    auto const found = look_up(request);
    expect(found.state == lookup_state::miss, of + " is a hit; expected a miss");
    expect(found.state != lookup_state::miss || found.reason == why,
           of + " is a miss because " + to_string(found.reason) + "; expected " + to_string(why));
  }
  void expect_no_hit(lookup_request const& request, std::string const& of) {
    expect(look_up(request).state == lookup_state::miss, of + " is a hit; expected a miss");
  }

  /// Samples that together need twice what the store holds, an eighth of it each.
  std::vector<sample> more_than_fits() const {
    sample const small(1, 100), large(1, 1100);
    auto const token_bytes = (large.layout.bytes() - small.layout.bytes()) / 1000;
    std::vector<sample> all;
    for (unsigned seed = 100; seed < 116; ++seed) all.emplace_back(seed, subject_.capacity_bytes / 9 / token_bytes);
    return all;
  }

 private:
  store_under_test const& subject_;
  cache_store& store_;
  std::string found_;
};

// begin

void begin_takes_no_requests(trial& with) {
  auto const which = with.begin({});
  with.poll(which, 0);
  with.release(which);
}

void begin_refuses_no_layout(trial& with) {
  sample const one(1);
  lookup_request request = one.lookup();
  request.layout = nullptr;
  auto const begun = with.store().begin({&request, 1});
  with.expect(begun.error(), status::invalid_argument, "begin of a request without a layout");
}

void begin_names_each_lookup(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const first = with.begin({&request, 1});
  auto const second = with.begin({&request, 1});
  with.expect(first != ticket::none && second != ticket::none, "begin gave the ticket that is none");
  with.expect(first != second, "two look-ups in flight have one ticket");
  with.release(first);
  with.release(second);
}

// poll

void poll_misses_the_absent(trial& with) {
  with.expect_miss(sample(1).lookup(), miss_reason::absent, "a record that nobody published");
}

void poll_gives_the_bytes(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  ticket lease{};
  auto const found = with.look_up(one.lookup(), &lease);
  with.expect(found.state == lookup_state::hit, "a published record is no hit");
  with.expect(with.broken() || one.same_parts(found.block, one.parts()),
              "a part of a hit has other bytes than were published");
  with.release(lease);
}

void poll_gives_the_parts_asked_for(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  std::mt19937 random(1);
  for (int round = 0; round < 20 && !with.broken(); ++round) {
    auto ids = one.parts();
    std::ranges::shuffle(ids, random);
    ids.resize(1 + random() % (ids.size() - 1));
    ticket lease{};
    auto const found = with.look_up(one.lookup(ids), &lease);
    with.expect(found.state == lookup_state::hit, "some parts of a published record are no hit");
    with.expect(with.broken() || one.same_parts(found.block, ids),
                "a part that was asked for has other bytes than were published");
    with.release(lease);
  }
}

void poll_misses_what_lacks_a_part(trial& with) {
  sample const one(1);
  auto const ids = one.parts();
  auto const half = std::span(ids).first(ids.size() / 2);
  with.publish_well(one.publish(half));
  with.expect_miss(one.lookup(), miss_reason::incomplete, "a record of which half was published");
  with.expect_hit(one.lookup(half), "the half of a record that was published");
}

void poll_compares_tokens(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto tokens = one.tokens;
  tokens.back() += 1;
  auto request = one.lookup();
  request.tokens = tokens;
  with.expect_miss(request, miss_reason::token_mismatch, "a record asked for with another last token");
}

void poll_compares_layouts(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto const other = record_layout::make(sample_model(8), one.layout.tokens()).value();
  auto request = one.lookup();
  request.layout = &other;
  with.expect_miss(request, miss_reason::layout_mismatch, "a record asked for in another layout");
}

void poll_compares_whole_keys(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto request = one.lookup();
  request.key.bytes.back() ^= std::byte{1};
  with.expect_no_hit(request, "a key that differs in its last bit");
}

void poll_answers_in_order(trial& with) {
  sample const one(1), two(2), three(3);
  with.publish_well(one.publish());
  with.publish_well(three.publish());
  lookup_request const requests[] = {one.lookup(), two.lookup(), three.lookup(), two.lookup()};
  auto const which = with.begin(requests);
  auto const found = with.poll(which, std::size(requests));
  bool const wanted[] = {true, false, true, false};
  for (std::size_t i = 0; i < std::size(requests); ++i) {
    with.expect((found[i].state == lookup_state::hit) == wanted[i],
                "answer " + std::to_string(i) + " of a batch is not that request's");
  }
  with.release(which);
}

void poll_refuses_strange_tickets(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  with.poll(which, 1);
  with.release(which);
  lookup_result result;
  with.expect(with.store().poll(which, {&result, 1}), status::not_found, "poll of a released ticket");
  with.expect(with.store().poll(ticket::none, {&result, 1}), status::not_found, "poll of no ticket");
}

void poll_wants_a_result_a_request(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  std::vector<lookup_result> results(2);
  with.expect(with.store().poll(which, results), status::invalid_shape, "poll of one request for two results");
  with.release(which);
}

void poll_stays_with_its_answer(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  auto const first = with.poll(which, 1).front();
  lookup_result again;
  with.expect(with.store().poll(which, {&again, 1}), status::ok, "a second poll");
  with.expect(again.state == first.state && again.block.data() == first.block.data(),
              "a second poll has another answer");
  with.release(which);
}

// publish

void publish_checks_digests(trial& with) {
  sample one(1);
  one.digests.back()[0] ^= std::byte{1};
  with.expect(with.publish(one.publish()), status::corrupt, "publish with a digest that does not fit");
  with.expect_no_hit(one.lookup(), "a record whose digest did not fit");
}

void publish_checks_shapes(trial& with) {
  sample const one(1);
  auto const refused = [&](auto change, char const* of) {
    auto request = one.publish();
    change(request);
    with.expect(with.publish(request), status::invalid_shape, std::string("publish with ") + of);
  };
  refused([](auto& r) { r.block = r.block.first(r.block.size() - 1); }, "a byte too few");
  refused([](auto& r) { r.digests = r.digests.first(r.digests.size() - 1); }, "a digest too few");
  refused([](auto& r) { r.tokens = r.tokens.first(r.tokens.size() - 1); }, "a token too few");
  with.expect_no_hit(one.lookup(), "a record that was refused");
}

void publish_checks_arguments(trial& with) {
  sample const one(1);
  part_id const strange[] = {{7, part_kind::tail, 0}};
  auto const refused = [&](auto change, char const* of) {
    auto request = one.publish();
    change(request);
    with.expect(with.publish(request), status::invalid_argument, std::string("publish with ") + of);
  };
  refused([](auto& r) { r.layout = nullptr; }, "no layout");
  refused([](auto& r) { r.value = -1; }, "a negative value");
  refused([&](auto& r) { r.parts = strange; }, "a part that the layout has not");
}

void publish_keeps_what_is_there(trial& with) {
  sample const first(1);
  auto second = first;
  auto const& part = second.layout.parts().front();
  second.block[static_cast<std::size_t>(part.offset)] ^= std::byte{1};
  second.digest_block();
  with.publish_well(first.publish());
  with.publish_well(second.publish());
  ticket lease{};
  auto const found = with.look_up(first.lookup(), &lease);
  with.expect(found.state == lookup_state::hit, "a record that was published twice is no hit");
  with.expect(with.broken() || found.block[static_cast<std::size_t>(part.offset)] ==
                                   first.block[static_cast<std::size_t>(part.offset)],
              "a second publish changed a record that was there");
  with.release(lease);
}

void publish_refuses_other_tokens(trial& with) {
  sample const first(1);
  auto second = first;
  second.tokens.front() += 1;
  with.publish_well(first.publish());
  with.expect(with.publish(second.publish()), status::invalid_argument, "publish of a known key with other tokens");
}

void publish_copies(trial& with) {
  sample one(1);
  auto const at = static_cast<std::size_t>(one.layout.parts().front().offset);
  auto const before = one.block[at];
  with.publish_well(one.publish());
  one.block[at] ^= std::byte{1};
  ticket lease{};
  auto const found = with.look_up(one.lookup(), &lease);
  with.expect(found.state == lookup_state::hit && found.block[at] == before,
              "a record changed with the memory that it was published from");
  with.release(lease);
}

void publish_tells_of_each(trial& with) {
  sample const good(1), also_good(3);
  sample bad(2);
  bad.digests.front()[0] ^= std::byte{1};
  publish_request const requests[] = {good.publish(), bad.publish(), also_good.publish()};
  status outcomes[3];
  auto const returned = with.store().publish(requests, outcomes);
  with.expect(outcomes[0] == status::ok && outcomes[1] == status::corrupt && outcomes[2] == status::ok,
              "the outcomes of a batch are not those of its records");
  with.expect(returned, status::corrupt, "publish of a batch with a corrupt record");
  with.expect_hit(also_good.lookup(), "a record behind a corrupt one");
}

void publish_adds_parts(trial& with) {
  sample const one(1);
  auto const ids = one.parts();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<part_id> mine;
    for (auto i = rank; i < ids.size(); i += 2) mine.push_back(ids[i]);
    with.publish_well(one.publish(mine));
  }
  with.expect_hit(one.lookup(), "a record whose halves two ranks published");
}

void publish_serves_only_the_right_when_full(trial& with) {
  auto const samples = with.more_than_fits();
  std::int64_t hits = 0;
  for (auto const& one : samples) {
    auto const outcome = with.publish(one.publish());
    with.expect(outcome == status::ok || outcome == status::capacity_exceeded,
                "publish to a full store: " + message(outcome));
  }
  for (auto const& one : samples) {
    ticket lease{};
    auto const found = with.look_up(one.lookup(), &lease);
    hits += found.state == lookup_state::hit;
    with.expect(found.state != lookup_state::hit || one.same_parts(found.block, one.parts()),
                "a full store gives a record other bytes than were published");
    with.release(lease);
  }
  with.expect(hits > 0, "a store that twice its capacity was published to holds nothing");
}

// release

/// Publishes to the store until it must have thrown out what it may.
void press(trial& with, std::span<sample const> samples) {
  for (auto const& one : samples) static_cast<void>(with.publish(one.publish()));
}

void release_keeps_leased_bytes(trial& with) {
  auto const samples = with.more_than_fits();
  auto const& one = samples.front();
  with.publish_well(one.publish());
  ticket lease{};
  auto const found = with.look_up(one.lookup(), &lease);
  with.expect(found.state == lookup_state::hit, "a published record is no hit");
  if (with.broken()) return;
  std::vector<std::byte> const before(found.block.begin(), found.block.end());
  press(with, std::span(samples).subspan(1));
  with.expect(std::ranges::equal(found.block, before), "leased bytes changed before their release");
  with.release(lease);
}

void release_waits_for_its_fence(trial& with) {
  auto const samples = with.more_than_fits();
  auto const& one = samples.front();
  with.publish_well(one.publish());
  ticket lease{};
  auto const found = with.look_up(one.lookup(), &lease);
  with.expect(found.state == lookup_state::hit, "a published record is no hit");
  if (with.broken()) return;
  std::vector<std::byte> const before(found.block.begin(), found.block.end());
  std::atomic<bool> done = false;
  with.release(lease, {[](void* context) noexcept { return static_cast<std::atomic<bool>*>(context)->load(); }, &done});
  press(with, std::span(samples).subspan(1));
  with.expect(std::ranges::equal(found.block, before), "bytes changed before the fence of their release was reached");
  done = true;
  // The store asks the fence once more while `done` lives.
  press(with, std::span(samples).subspan(1));
}

void release_ends_one_lease(trial& with) {
  auto const samples = with.more_than_fits();
  auto const& one = samples.front();
  with.publish_well(one.publish());
  ticket first{}, second{};
  with.look_up(one.lookup(), &first);
  auto const found = with.look_up(one.lookup(), &second);
  with.expect(found.state == lookup_state::hit, "a leased record is no hit for another");
  if (with.broken()) return;
  std::vector<std::byte> const before(found.block.begin(), found.block.end());
  with.release(first);
  press(with, std::span(samples).subspan(1));
  with.expect(std::ranges::equal(found.block, before), "the release of one lease ended another");
  with.release(second);
}

void release_is_once(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  with.release(which);
  with.expect(with.store().release(which, {}), status::not_found, "a second release of a ticket");
  with.expect(with.store().release(ticket::none, {}), status::not_found, "release of no ticket");
}

void release_gives_room_back(trial& with) {
  auto const samples = with.more_than_fits();
  for (int round = 0; round < 40 && !with.broken(); ++round) {
    auto const& next = samples[static_cast<std::size_t>(round) % samples.size()];
    with.expect(with.publish(next.publish()), status::ok, "publish to a store without leases, an eighth of its size,");
    ticket lease{};
    static_cast<void>(with.look_up(next.lookup(), &lease));
    with.release(lease);
  }
}

void any_thread_may_call(trial& with) {
  constexpr int rounds = 200;
  std::vector<sample> samples;
  for (unsigned seed = 1; seed <= 8; ++seed) samples.emplace_back(seed);
  std::atomic<std::int64_t> faults = 0;
  auto const work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < rounds; ++round) {
      auto const& one = samples[random() % samples.size()];
      auto const published = one.publish();
      status outcome;
      auto const returned = with.store().publish({&published, 1}, {&outcome, 1});
      faults += returned != status::ok && returned != status::capacity_exceeded;
      auto const wanted = one.lookup();
      auto const begun = with.store().begin({&wanted, 1});
      faults += !begun;
      if (!begun) continue;
      lookup_result found;
      for (std::int64_t i = 0; i < with.subject().most_polls && found.state == lookup_state::pending; ++i) {
        if (with.store().poll(*begun, {&found, 1}) != status::ok) break;
      }
      faults += found.state == lookup_state::pending;
      if (found.state == lookup_state::hit) faults += !one.same_parts(found.block, one.parts());
      faults += with.store().release(*begun, {}) != status::ok;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < with.subject().threads; ++t) threads.emplace_back(work, static_cast<unsigned>(t));
  for (auto& thread : threads) thread.join();
  with.expect(faults == 0, std::to_string(faults) + " calls of several threads at once failed or gave wrong bytes");
}

struct clause {
  char const* verb;
  char const* text;
  void (*check)(trial&);
  bool on_a_full_store = false;
};

constexpr clause clauses[] = {
    {"begin", "a batch may be empty", begin_takes_no_requests},
    {"begin", "a request without a layout is refused", begin_refuses_no_layout},
    {"begin", "each look-up has a ticket of its own", begin_names_each_lookup},
    {"poll", "what nobody published is a miss: absent", poll_misses_the_absent},
    {"poll", "a hit has the bytes that were published", poll_gives_the_bytes},
    {"poll", "parts may be asked for in any order and number", poll_gives_the_parts_asked_for},
    {"poll", "a record without a part that is asked for is a miss: incomplete", poll_misses_what_lacks_a_part},
    {"poll", "other tokens under a key are a miss: token mismatch", poll_compares_tokens},
    {"poll", "another layout under a key is a miss: layout mismatch", poll_compares_layouts},
    {"poll", "keys are compared whole", poll_compares_whole_keys},
    {"poll", "answers come in the order of the requests", poll_answers_in_order},
    {"poll", "a ticket that is unknown or released is refused", poll_refuses_strange_tickets},
    {"poll", "another number of results than of requests is refused", poll_wants_a_result_a_request},
    {"poll", "an answer does not change", poll_stays_with_its_answer},
    {"publish", "a digest that does not fit is refused", publish_checks_digests},
    {"publish", "bytes, digests and tokens that do not fit the layout are refused", publish_checks_shapes},
    {"publish", "arguments without meaning are refused", publish_checks_arguments},
    {"publish", "what is there stays as it is", publish_keeps_what_is_there},
    {"publish", "other tokens under a known key are refused", publish_refuses_other_tokens},
    {"publish", "everything is copied", publish_copies},
    {"publish", "each record of a batch has its own outcome", publish_tells_of_each},
    {"publish", "parts that are published apart make one record", publish_adds_parts},
    {"publish", "a full store serves the right bytes or none", publish_serves_only_the_right_when_full, true},
    {"release", "leased bytes stay", release_keeps_leased_bytes, true},
    {"release", "bytes stay until the fence is reached", release_waits_for_its_fence, true},
    {"release", "one lease ends without another", release_ends_one_lease, true},
    {"release", "a ticket is released once", release_is_once},
    {"release", "released bytes make room", release_gives_room_back, true},
    {"release", "any thread may call any verb", any_thread_may_call},
};

clause_report check(store_under_test const& subject, clause const& of) {
  clause_report report{of.verb, of.text};
  if (of.on_a_full_store && subject.capacity_bytes == 0) {
    report.found = "capacity_bytes is not known";
    return report;
  }
  auto const store = subject.make(subject.context);
  if (store == nullptr) {
    report.outcome = clause_outcome::broken;
    report.found = "make gave no store";
    return report;
  }
  trial with(subject, *store);
  of.check(with);
  report.outcome = with.broken() ? clause_outcome::broken : clause_outcome::kept;
  report.found = with.take_found();
  return report;
}

}  // namespace

result<std::vector<clause_report>> check_store_contract(store_under_test const& subject) {
  if (subject.make == nullptr) return status{status::invalid_argument, "subject.make"};
  if (subject.threads < 2) {
    return status{status::invalid_argument, "subject.threads", subject.threads, status::relation::at_least, 2};
  }
  if (subject.capacity_bytes != 0 && subject.capacity_bytes < least_capacity) {
    return status{status::invalid_argument, "subject.capacity_bytes", subject.capacity_bytes,
                  status::relation::at_least, least_capacity};
  }
  return guarded([&]() -> result<std::vector<clause_report>> {
    std::vector<clause_report> reports;
    for (auto const& of : clauses) reports.push_back(check(subject, of));
    return reports;
  });
}

}  // namespace hypic::inline v0
