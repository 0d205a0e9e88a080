// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/contract_kit.hpp"

#include <atomic>
#include <set>

#include "store/contract_trial.hpp"
#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t least_capacity = 256 * 1024;

/// No store gives this ticket: it would have to count for centuries.
constexpr ticket never_given{~std::uint64_t{0}};

// begin

void begin_takes_no_requests(trial& with) {
  auto const which = with.begin({});
  with.poll(which, 0);
  with.release(which);
}

void begin_refuses_no_layout(trial& with) {
  sample const one(1);
  lookup_request requests[] = {one.lookup(), one.lookup()};
  requests[1].layout = nullptr;
  for (std::size_t first : {1U, 0U}) {
    auto const begun = with.store().begin(std::span(requests).subspan(first));
    with.expect(begun.error(), status::invalid_argument, "begin of a request without a layout");
    if (begun) with.release(*begun);
  }
}

void begin_names_each_lookup(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const first = with.begin({&request, 1});
  auto const second = with.begin({&request, 1});
  with.expect(first != ticket::none && second != ticket::none, "begin gave ticket 0; expected one that is not");
  with.expect(first != second, "two look-ups in flight have one ticket; expected one each");
  with.release(first);
  with.release(second);
}

void begin_names_no_lookup_again(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  std::set<ticket> given;
  for (int round = 0; round < 100 && !with.broken(); ++round) {
    auto const which = with.begin({&request, 1});
    with.expect(given.insert(which).second,
                "a ticket that was released is given to a later look-up; expected a new one");
    with.release(which);
  }
}

void begin_copies(trial& with) {
  sample const one(1), other(2);
  with.publish_well(one.publish(one.every(2, 0)));
  auto ids = one.every(2, 0);
  lookup_request request = one.lookup(ids);
  auto const which = with.begin({&request, 1});
  // Of the caller's again, and about parts and a record that are not there.
  auto const asked = std::exchange(ids, one.every(2, 1));
  request = other.lookup();
  auto const found = with.poll(which, 1).front();
  with.expect_hit(one, one.lookup(asked), found, "a look-up whose request and parts were overwritten after begin");
  with.release(which);
}

// poll

void poll_misses_the_absent(trial& with) {
  with.expect_miss(sample(1).lookup(), miss_reason::absent, "a record that nobody published");
}

/// Of lengths around those of head rows, tails and usual pages.
void poll_gives_the_bytes(trial& with) {
  for (std::int64_t const tokens : {1, 2, 7, 8, 9, 64, 130}) {
    sample const one(static_cast<unsigned>(tokens), tokens);
    with.publish_well(one.publish());
    with.expect_hit(one, one.lookup(), "a published record of " + std::to_string(tokens) + " tokens");
  }
}

void poll_aligns(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  ticket lease{};
  auto const found = with.look_up(one.lookup(), &lease);
  auto const past = reinterpret_cast<std::uintptr_t>(found.block.data()) % alignof(float);
  with.expect(past == 0,
              "the block of a hit is " + std::to_string(past) + " bytes past a float's alignment; expected 0");
  with.release(lease);
}

void poll_gives_the_parts_asked_for(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  for (auto const& id : one.parts) with.expect_hit(one, one.lookup({&id, 1}), "one part of a published record");
  std::mt19937 random(1);
  for (int round = 0; round < 20 && !with.broken(); ++round) {
    auto ids = one.parts;
    std::ranges::shuffle(ids, random);
    ids.resize(1 + random() % ids.size());
    ids.push_back(ids.front());
    with.expect_hit(one, one.lookup(ids), "parts of a published record, shuffled, one of them twice,");
  }
}

void poll_misses_what_lacks_a_part(trial& with) {
  sample const one(1);
  auto const half = std::span(one.parts).first(one.parts.size() / 2);
  part_id const strange{7, part_kind::tail, 0};
  with.publish_well(one.publish(half));
  with.expect_miss(one.lookup(), miss_reason::incomplete, "a record of which half was published");
  with.expect_miss(one.lookup({&one.parts.back(), 1}), miss_reason::incomplete, "a part that was not published");
  with.expect_miss(one.lookup({&strange, 1}), miss_reason::incomplete, "a part that the layout has not");
  with.expect_hit(one, one.lookup(half), "the half of a record that was published");
}

void poll_compares_tokens(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  for (std::size_t at : {std::size_t{0}, one.tokens.size() - 1}) {
    auto tokens = one.tokens;
    tokens[at] += 1;
    auto request = one.lookup();
    request.tokens = tokens;
    with.expect_miss(request, miss_reason::token_mismatch,
                     "a record asked for with another token " + std::to_string(at));
  }
  auto fewer = one.lookup();
  fewer.tokens = fewer.tokens.first(fewer.tokens.size() - 1);
  with.expect_miss(fewer, miss_reason::token_mismatch, "a record asked for with a token fewer");
}

void poll_compares_layouts(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto const other = required(record_layout::make(sample_model(8), one.layout.tokens()));
  auto request = one.lookup();
  request.layout = &other;
  with.expect_miss(request, miss_reason::layout_mismatch, "a record asked for in another layout");
}

void poll_compares_whole_keys(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  for (std::size_t i = 0; i < one.key.bytes.size() && !with.broken(); ++i) {
    auto request = one.lookup();
    request.key.bytes[i] ^= std::byte{1};
    with.expect_no_hit(request, "a key that differs in a bit of byte " + std::to_string(i));
  }
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
                "answer " + std::to_string(i) + " of a batch is a " + (wanted[i] ? "miss" : "hit") + "; expected a " +
                    (wanted[i] ? "hit" : "miss"));
  }
  with.release(which);
}

void poll_answers_twins(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  lookup_request const requests[] = {one.lookup(), one.lookup(), one.lookup()};
  auto const which = with.begin(requests);
  auto const found = with.poll(which, std::size(requests));
  for (auto const& each : found)
    with.expect_hit(one, one.lookup(), each, "a record that stands in a batch three times");
  with.release(which);
}

void poll_gives_a_block_or_a_reason(trial& with) {
  sample const one(1), two(2);
  with.publish_well(one.publish());
  lookup_request const requests[] = {one.lookup(), two.lookup()};
  auto const which = with.begin(requests);
  auto const found = with.poll(which, std::size(requests));
  for (auto const& each : found) {
    bool const hit = each.state == lookup_state::hit;
    with.expect((each.reason == miss_reason::none) == hit, std::string(hit ? "a hit" : "a miss") + " has the reason " +
                                                               to_string(each.reason) + "; expected " +
                                                               (hit ? "none" : "another"));
    with.expect(each.block.empty() != hit, std::string(hit ? "a hit" : "a miss") + " has a block of " +
                                               std::to_string(each.block.size()) + " bytes; expected " +
                                               (hit ? "the record" : "none"));
  }
  with.release(which);
}

void poll_waits_for_no_other_ticket(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto const request = one.lookup();
  std::vector<ticket> tickets;
  for (int i = 0; i < 4; ++i) tickets.push_back(with.begin({&request, 1}));
  std::ranges::reverse(tickets);
  for (auto const which : tickets) {
    auto const found = with.poll(which, 1).front();
    with.expect_hit(one, request, found, "a look-up polled before those that began earlier");
  }
  for (auto const which : tickets) with.release(which);
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
  with.expect(with.store().poll(never_given, {&result, 1}), status::not_found,
              "poll of a ticket that begin never gave");
}

void poll_wants_a_result_a_request(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  std::vector<lookup_result> results(2);
  with.expect(with.store().poll(which, results), status::invalid_shape, "poll of one request for two results");
  with.expect(with.store().poll(which, {}), status::invalid_shape, "poll of one request for no result");
  with.release(which);
}

void poll_stays_with_its_answer(trial& with) {
  sample const one(1), two(2);
  with.publish_well(one.publish());
  lookup_request const requests[] = {one.lookup(), two.lookup()};
  auto const which = with.begin(requests);
  auto const first = with.poll(which, 2);
  with.publish_well(two.publish());
  std::vector<lookup_result> again(2);
  with.expect(with.store().poll(which, again), status::ok, "a second poll");
  for (std::size_t i = 0; i < again.size(); ++i) {
    with.expect(again[i].state == first[i].state && again[i].reason == first[i].reason &&
                    again[i].block.data() == first[i].block.data(),
                std::string("a second poll of a ") + (i == 0 ? "hit" : "miss") +
                    " has another answer; expected the first one's");
  }
  with.release(which);
}

void poll_finds_damage(trial& with) {
  sample const whole(1);
  with.publish_well(whole.publish());
  for (std::size_t i = 0; i < whole.parts.size() && !with.broken(); ++i) {
    sample const one(static_cast<unsigned>(2 + i));
    with.publish_well(one.publish());
    bool const damaged = with.subject().damage(with.subject().context, with.store(), one.lookup({&one.parts[i], 1}));
    with.expect(damaged, "damage found no part of a published record; expected to flip a bit of it");
    with.expect_miss(one.lookup(), miss_reason::corrupt, "a record with a flipped bit in part " + std::to_string(i));
    with.expect_hit(whole, whole.lookup(), "the record beside a damaged one");
  }
}

// publish

void publish_takes_no_requests(trial& with) {
  with.expect(with.store().publish({}, {}), status::ok, "publish of an empty batch");
}

void publish_wants_an_outcome_a_request(trial& with) {
  sample const one(1);
  auto const request = one.publish();
  status outcomes[2];
  with.expect(with.store().publish({&request, 1}, outcomes), status::invalid_shape,
              "publish of one record for two outcomes");
  with.expect(with.store().publish({&request, 1}, {}), status::invalid_shape, "publish of one record for no outcome");
  with.expect_no_hit(one.lookup(), "a record that was refused for its outcomes");
}

/// The digest of the last part does not fit: nothing of the record is kept, the good parts neither.
void publish_checks_digests(trial& with) {
  sample const right(1);
  auto one = right;
  one.digests.back()[0] ^= std::byte{1};
  with.expect(with.publish(one.publish()), status::corrupt, "publish with a digest that does not fit");
  for (auto const& id : one.parts) {
    with.expect_no_hit(right.lookup({&id, 1}), "a part of a record of which one digest did not fit");
  }
}

void publish_checks_shapes(trial& with) {
  sample const one(1), longer(1, 21);
  auto const refused = [&](auto change, char const* of) {
    auto request = one.publish();
    change(request);
    with.expect(with.publish(request), status::invalid_shape, std::string("publish with ") + of);
  };
  refused([](auto& r) { r.block = r.block.first(r.block.size() - 1); }, "a byte too few");
  refused([&](auto& r) { r.block = longer.block; }, "bytes too many");
  refused([](auto& r) { r.digests = r.digests.first(r.digests.size() - 1); }, "a digest too few");
  refused([](auto& r) { r.tokens = r.tokens.first(r.tokens.size() - 1); }, "a token too few");
  refused([&](auto& r) { r.tokens = longer.tokens; }, "a token too many");
  with.expect_no_hit(one.lookup(), "a record that was refused for its shapes");
}

void publish_checks_arguments(trial& with) {
  sample const one(1);
  part_id const strange[] = {one.parts.front(), {7, part_kind::tail, 0}};
  auto const refused = [&](auto change, char const* of) {
    auto request = one.publish();
    change(request);
    with.expect(with.publish(request), status::invalid_argument, std::string("publish with ") + of);
  };
  refused([](auto& r) { r.layout = nullptr; }, "no layout");
  refused([](auto& r) { r.value = -1; }, "a negative value");
  refused([&](auto& r) { r.parts = strange; }, "a part that the layout has not");
  with.expect_no_hit(one.lookup({&one.parts.front(), 1}), "a record that was refused for its arguments");
}

void publish_keeps_what_is_there(trial& with) {
  sample const first(1);
  auto second = first;
  second.first_byte(0) ^= std::byte{1};
  second.digest_block();
  with.publish_well(first.publish());
  with.publish_well(second.publish());
  with.expect_hit(first, first.lookup(), "a record that was published again, with other bytes,");
}

void publish_refuses_other_tokens(trial& with) {
  sample const first(1);
  auto second = first;
  second.tokens.front() += 1;
  with.publish_well(first.publish());
  with.expect(with.publish(second.publish()), status::invalid_argument, "publish of a known key with other tokens");
}

void publish_refuses_another_layout(trial& with) {
  sample const first(1);
  auto second = first;
  second.layout = required(record_layout::make(sample_model(8), first.layout.tokens()));
  second.block.resize(static_cast<std::size_t>(second.layout.bytes()));
  second.digest_block();
  with.publish_well(first.publish());
  with.expect(with.publish(second.publish()), status::invalid_shape, "publish of a known key with another layout");
}

void publish_copies(trial& with) {
  sample const one(1);
  {
    auto lent = one;
    with.publish_well(lent.publish());
    // The publisher's again; its layout is gone.
    for (auto& byte : lent.block) byte ^= std::byte{1};
    for (auto& token : lent.tokens) ++token;
    for (auto& digest : lent.digests) digest[0] ^= std::byte{1};
    lent.layout = {};
    with.expect_hit(one, one.lookup(), "a record whose publisher has written over what it published");
  }
}

void publish_tells_of_each(trial& with) {
  sample const good(1), last(3), wrong(4);
  sample bad(2);
  bad.digests.front()[0] ^= std::byte{1};
  publish_request requests[] = {good.publish(), bad.publish(), wrong.publish(), last.publish()};
  requests[2].value = -1;
  status outcomes[4];
  auto const returned = with.store().publish(requests, outcomes);
  status::code const wanted[] = {status::ok, status::corrupt, status::invalid_argument, status::ok};
  for (std::size_t i = 0; i < 4; ++i)
    with.expect(outcomes[i], wanted[i], "outcome " + std::to_string(i) + " of a batch");
  with.expect(returned, status::corrupt, "publish of a batch whose first fault is a digest");
  with.expect_hit(last, last.lookup(), "a record behind a corrupt one");
}

void publish_takes_twins(trial& with) {
  sample const one(1);
  publish_request const requests[] = {one.publish(), one.publish()};
  status outcomes[2];
  with.expect(with.store().publish(requests, outcomes), status::ok, "publish of a record twice in a batch");
  for (auto const& outcome : outcomes) with.expect(outcome, status::ok, "an outcome of a record twice in a batch");
  with.expect_hit(one, one.lookup(), "a record that was published twice in a batch");
}

/// Two ranks publish every second part. What each has in the place of the other's is anything.
void publish_adds_parts(trial& with) {
  sample const one(1);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    auto mine = one;
    for (std::size_t i = 1 - rank; i < one.parts.size(); i += 2) {
      auto const& part = one.layout.parts()[i];
      std::fill_n(mine.block.begin() + part.offset, part.bytes, std::byte{0xa5});
      mine.digests[i] = {};
    }
    with.publish_well(mine.publish(one.every(2, rank)));
  }
  with.expect_hit(one, one.lookup(), "a record whose halves two ranks published");
  with.expect_hit(one, one.lookup(one.every(4, 1)), "a quarter of a record whose halves two ranks published");
}

/// A part that does not fit its digest takes nothing away from those that are there.
void publish_leaves_the_good_half(trial& with) {
  sample const one(1);
  auto torn = one;
  torn.digests.back()[0] ^= std::byte{1};
  auto const half = std::span(one.parts).first(one.parts.size() / 2);
  with.publish_well(one.publish(half));
  static_cast<void>(with.publish(torn.publish()));
  with.expect_hit(one, one.lookup(half), "the half that was there before a publish that was refused");
}

void publish_takes_the_empty(trial& with) {
  sample const nothing(1, 0);
  with.publish_well(nothing.publish());
  with.expect(with.look_up(nothing.lookup()).state == lookup_state::hit,
              "a published record of no tokens is a miss; expected a hit");
}

void publish_mends(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  static_cast<void>(with.subject().damage(with.subject().context, with.store(), one.lookup({&one.parts.front(), 1})));
  static_cast<void>(with.look_up(one.lookup()));  // finds it
  with.publish_well(one.publish());
  with.expect_hit(one, one.lookup(), "a record that was damaged, found corrupt and published anew");
}

void publish_refuses_the_too_large(trial& with) {
  auto const large = with.filling(1, 1.25);
  with.expect(with.publish(large.publish()), status::capacity_exceeded, "publish of a record larger than the store");
  with.expect_no_hit(large.lookup({&large.parts.front(), 1}), "a part of a record larger than the store");
}

void publish_serves_only_the_right_when_full(trial& with) {
  auto const samples = with.more_than_fits();
  std::int64_t hits = 0;
  for (auto const& one : samples) {
    auto const outcome = with.publish(one.publish());
    with.expect(outcome == status::ok || outcome == status::capacity_exceeded,
                "publish to a full store: found " + message(outcome) + "; expected ok or capacity_exceeded");
  }
  for (auto const& one : samples) {
    ticket lease{};
    auto const found = with.look_up(one.lookup(), &lease);
    hits += found.state == lookup_state::hit;
    if (found.state == lookup_state::hit) with.expect_hit(one, one.lookup(), found, "a record of a full store");
    with.release(lease);
  }
  with.expect(hits > 0, "a store that nearly twice its capacity was published to serves nothing; expected a hit");
}

// release

/// A sample that was published, leased, and copied as it was found.
struct leased {
  sample one;
  ticket lease{};
  lookup_result found{};
  std::vector<std::byte> before{};

  leased(trial& with, sample published) : one(std::move(published)) {
    with.publish_well(one.publish());
    found = with.look_up(one.lookup(), &lease);
    with.expect_hit(one, one.lookup(), found, "a published record");
    before = {found.block.begin(), found.block.end()};
  }
  void expect_unchanged(trial& with, std::string const& when) const {
    if (with.broken()) return;
    with.expect(std::ranges::equal(found.block, before),
                "leased bytes changed " + when + "; expected those of the hit");
  }
};

bool is_set(void* context) noexcept { return static_cast<std::atomic<bool>*>(context)->load(); }

void release_keeps_leased_bytes(trial& with) {
  auto const samples = with.more_than_fits();
  leased const held(with, samples.front());
  with.press(std::span(samples).subspan(1));
  held.expect_unchanged(with, "while a full store made room");
  lookup_result again;
  with.expect(with.store().poll(held.lease, {&again, 1}), status::ok, "poll of a lease on a full store");
  with.expect(again.block.data() == held.found.block.data(), "a leased block has moved; expected it in its place");
  with.release(held.lease);
}

void release_keeps_what_is_published_again(trial& with) {
  leased const held(with, sample(1));
  auto other = held.one;
  for (std::size_t part = 0; part < other.parts.size(); ++part) other.first_byte(part) ^= std::byte{1};
  other.digest_block();
  static_cast<void>(with.publish(other.publish()));
  held.expect_unchanged(with, "when their key was published again");
  with.release(held.lease);
}

void release_waits_for_its_fence(trial& with) {
  auto const samples = with.more_than_fits();
  std::atomic<bool> done = false;
  leased const held(with, samples.front());
  with.release(held.lease, {is_set, &done});
  with.press(std::span(samples).subspan(1));
  held.expect_unchanged(with, "before the fence of their release was reached");
  done = true;
  with.press(std::span(samples).subspan(1));  // asks once more while `done` lives
}

struct asked_fence {
  std::atomic<bool> over{false};
  std::atomic<int> asked_after{0};  // the answer that it was over
  static bool reached(void* context) noexcept {
    auto& self = *static_cast<asked_fence*>(context);
    if (!self.over) return false;
    ++self.asked_after;
    return true;
  }
};

void release_asks_no_more(trial& with) {
  leased const held(with, sample(1));
  asked_fence end;
  with.release(held.lease, {asked_fence::reached, &end});
  static_cast<void>(with.look_up(held.one.lookup()));
  end.over = true;
  for (int round = 0; round < 4; ++round) {
    static_cast<void>(with.publish(held.one.publish()));
    static_cast<void>(with.look_up(held.one.lookup()));
  }
  with.expect(end.asked_after <= 1, "a fence said " + std::to_string(end.asked_after) +
                                        " times that it was reached; expected to be asked no more after the first");
}

void release_ends_one_lease(trial& with) {
  auto const samples = with.more_than_fits();
  auto const& one = samples.front();
  with.publish_well(one.publish());
  ticket first{};
  with.look_up(one.lookup(), &first);
  leased const held(with, one);
  with.release(first);
  with.press(std::span(samples).subspan(1));
  held.expect_unchanged(with, "when another lease on them ended");
  with.release(held.lease);
}

void release_is_once(trial& with) {
  sample const one(1);
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  with.release(which);
  with.expect(with.store().release(which, {}), status::not_found, "a second release of a ticket");
  with.expect(with.store().release(ticket::none, {}), status::not_found, "release of no ticket");
  with.expect(with.store().release(never_given, {}), status::not_found, "release of a ticket that begin never gave");
}

void release_needs_no_answer(trial& with) {
  sample const one(1);
  with.publish_well(one.publish());
  auto const request = one.lookup();
  auto const which = with.begin({&request, 1});
  with.expect(with.store().release(which, {}), status::ok, "release of a look-up that was never polled");
  lookup_result result;
  with.expect(with.store().poll(which, {&result, 1}), status::not_found,
              "poll of a look-up released before its answer");
}

/// Publishes and leases, again and again, more than fits at once.
template <class Release>
void expect_room(trial& with, std::string const& after, Release release) {
  auto const samples = with.more_than_fits();
  for (int round = 0; round < 40 && !with.broken(); ++round) {
    auto const& next = samples[static_cast<std::size_t>(round) % samples.size()];
    with.expect(with.publish(next.publish()), status::ok, "publish of a ninth of a store after " + after);
    ticket lease{};
    static_cast<void>(with.look_up(next.lookup(), &lease));
    release(lease);
  }
}

void release_gives_room_back(trial& with) {
  expect_room(with, "each lease was released", [&](ticket lease) { with.release(lease); });
}

void release_gives_room_back_after_its_fence(trial& with) {
  std::atomic<bool> done = false;
  expect_room(with, "each fence was reached", [&](ticket lease) {
    done = false;
    with.release(lease, {is_set, &done});
    done = true;
    static_cast<void>(with.look_up(sample(1).lookup()));  // a verb, to ask in
  });
}

/// Publishes, looks up, compares and releases on several threads, and counts what goes wrong.
void expect_threads(trial& with, std::span<sample const> samples, int rounds) {
  std::atomic<std::int64_t> faults = 0;
  auto const work = [&](unsigned seed) noexcept {
    std::minstd_rand random(seed + 1);
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
        if (found.state == lookup_state::pending) std::this_thread::yield();
      }
      faults += found.state == lookup_state::pending;
      if (found.state == lookup_state::hit) faults += !one.same_parts(found.block, one.parts);
      faults += with.store().release(*begun, {}) != status::ok;
    }
  };
  {
    std::vector<std::jthread> threads;  // joined here, also where one cannot be started
    for (int t = 0; t < with.subject().threads; ++t) threads.emplace_back(work, static_cast<unsigned>(t));
  }
  with.expect(faults == 0,
              std::to_string(faults) + " calls of several threads at once failed or gave wrong bytes; expected none");
}

void any_thread_may_call(trial& with) {
  std::vector<sample> samples;
  for (unsigned seed = 1; seed <= 8; ++seed) samples.emplace_back(seed);
  expect_threads(with, samples, 200);
}

void any_thread_may_call_when_full(trial& with) { expect_threads(with, with.more_than_fits(), 30); }

/// What a host has to bring for a clause.
enum class needs : std::uint8_t { nothing, capacity, damage };

struct clause {
  char const* verb;
  char const* text;
  void (*check)(trial&);
  needs of_host = needs::nothing;
};

constexpr clause clauses[] = {
    {"begin", "a batch may be empty", begin_takes_no_requests},
    {"begin", "a request without a layout is refused", begin_refuses_no_layout},
    {"begin", "each look-up has a ticket of its own", begin_names_each_lookup},
    {"begin", "no ticket is given twice", begin_names_no_lookup_again},
    {"begin", "requests are copied", begin_copies},
    {"poll", "what nobody published is a miss: absent", poll_misses_the_absent},
    {"poll", "a hit has the bytes that were published", poll_gives_the_bytes},
    {"poll", "a block is aligned for float", poll_aligns},
    {"poll", "parts may be asked for in any order and number", poll_gives_the_parts_asked_for},
    {"poll", "a record without a part that is asked for is a miss: incomplete", poll_misses_what_lacks_a_part},
    {"poll", "other tokens under a key are a miss: token mismatch", poll_compares_tokens},
    {"poll", "another layout under a key is a miss: layout mismatch", poll_compares_layouts},
    {"poll", "keys are compared whole", poll_compares_whole_keys},
    {"poll", "answers come in the order of the requests", poll_answers_in_order},
    {"poll", "a record may stand in a batch several times", poll_answers_twins},
    {"poll", "a hit has a block, a miss a reason", poll_gives_a_block_or_a_reason},
    {"poll", "an answer waits for no other ticket", poll_waits_for_no_other_ticket},
    {"poll", "a ticket that is unknown or released is refused", poll_refuses_strange_tickets},
    {"poll", "another number of results than of requests is refused", poll_wants_a_result_a_request},
    {"poll", "an answer does not change", poll_stays_with_its_answer},
    {"poll", "damaged bytes are a miss of their record alone: corrupt", poll_finds_damage, needs::damage},
    {"publish", "a batch may be empty", publish_takes_no_requests},
    {"publish", "another number of outcomes than of requests is refused", publish_wants_an_outcome_a_request},
    {"publish", "a digest that does not fit is refused, with its record", publish_checks_digests},
    {"publish", "bytes, digests and tokens that do not fit the layout are refused", publish_checks_shapes},
    {"publish", "arguments without meaning are refused", publish_checks_arguments},
    {"publish", "what is there stays as it is", publish_keeps_what_is_there},
    {"publish", "other tokens under a known key are refused", publish_refuses_other_tokens},
    {"publish", "another layout under a known key is refused", publish_refuses_another_layout},
    {"publish", "everything is copied", publish_copies},
    {"publish", "each record of a batch has its own outcome", publish_tells_of_each},
    {"publish", "a record may stand in a batch several times", publish_takes_twins},
    {"publish", "parts that are published apart make one record", publish_adds_parts},
    {"publish", "a refusal takes nothing away", publish_leaves_the_good_half},
    {"publish", "a record without tokens is kept", publish_takes_the_empty},
    {"publish", "what was found corrupt may be published anew", publish_mends, needs::damage},
    {"publish", "what is larger than the store is refused", publish_refuses_the_too_large, needs::capacity},
    {"publish", "a full store serves the right bytes or none", publish_serves_only_the_right_when_full,
     needs::capacity},
    {"release", "leased bytes stay where they are", release_keeps_leased_bytes, needs::capacity},
    {"release", "leased bytes stay though their key is published again", release_keeps_what_is_published_again},
    {"release", "bytes stay until the fence is reached", release_waits_for_its_fence, needs::capacity},
    {"release", "a fence that was reached is asked no more", release_asks_no_more},
    {"release", "one lease ends without another", release_ends_one_lease, needs::capacity},
    {"release", "a ticket is released once", release_is_once},
    {"release", "a look-up may be released before its answer", release_needs_no_answer},
    {"release", "released bytes make room", release_gives_room_back, needs::capacity},
    {"release", "bytes make room once the fence is reached", release_gives_room_back_after_its_fence, needs::capacity},
    {"any", "any thread may call any verb", any_thread_may_call},
    {"any", "any thread may call any verb of a full store", any_thread_may_call_when_full, needs::capacity},
};

/// Why a clause cannot be checked; empty where it can.
std::string lacks(store_under_test const& subject, needs what) {
  if (what == needs::capacity && subject.capacity_bytes == 0) return "capacity_bytes is not known";
  if (what == needs::damage && subject.damage == nullptr) return "damage is null";
  return {};
}

clause_report check(store_under_test const& subject, clause const& of) {
  clause_report report{of.verb, of.text};
  report.found = lacks(subject, of.of_host);
  if (!report.found.empty()) return report;
  auto const store = subject.make(subject.context);
  if (store == nullptr) {
    report.outcome = clause_outcome::broken;
    report.found = "make gave no store; expected one";
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
