// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hypic/store/memory_store.hpp"
#include "store/store_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int64_t ample = 1 << 22;

std::vector<segment_record> make_records(int count, std::int64_t tokens = 12) {
  std::vector<segment_record> records;
  for (int seed = 0; seed < count; ++seed) records.emplace_back(make_small_model(), tokens, seed);
  return records;
}

bool there(cache_store& store, segment_record const& record) { return asked(store, record.question()).hit(); }

bool balanced(store_usage const& usage) {
  return usage.free >= 0 && usage.held >= 0 && usage.pinned >= 0 &&
         usage.free + usage.held + usage.pinned == usage.capacity;
}

struct counters final : observer {
  std::map<std::string, std::int64_t> counts;
  void count(char const* name, std::int64_t increment) noexcept override { counts[name] += increment; }
};

bool reached(void* context) noexcept { return static_cast<std::atomic<bool>*>(context)->load(); }

/// The parts of every second head: what one of two tensor-parallel ranks holds. The tail has no heads: rank 0 brings it.
std::vector<part_id> rank_parts(record_layout const& layout, int rank, int ranks) {
  return parts_where(layout, [&](part_id const& id) { return id.head % ranks == rank; });
}

}  // namespace

TEST_CASE("what is published is found, byte for byte", "[store][memory_store]") {
  memory_store store{ample};
  for (auto const tokens : {0, 1, 5, 40}) {
    segment_record const record{make_model(), tokens, tokens};
    CHECK(look_up(store, record.question()) == miss_reason::absent);
    REQUIRE(publish(store, record.publication()) == status::ok);
    asked const reader{store, record.question()};
    CHECK(reader.hit());
    CHECK(reader.block().size() == record.block.size());
    CHECK(same_parts(record.layout, reader.block(), record.block));
    CHECK(store.usage().pinned == record.bytes());
  }
  CHECK(store.usage().records == 4);
  CHECK(store.usage().pinned == 0);
  CHECK(balanced(store.usage()));
}

TEST_CASE("a store counts what its records take, states and keys alike", "[store][memory_store][case-31]") {
  segment_record const mostly_state{make_small_model(), 9, 1};
  segment_record const mostly_keys{make_small_model(), 200, 2};
  memory_store store{mostly_state.bytes() + mostly_keys.bytes()};
  REQUIRE(publish(store, mostly_state.publication()) == status::ok);
  CHECK(store.usage().held == mostly_state.bytes());
  CHECK(store.usage().free == mostly_keys.bytes());
  REQUIRE(publish(store, mostly_keys.publication()) == status::ok);
  CHECK(store.usage().held == store.usage().capacity);
  CHECK(store.usage().records == 2);
}

TEST_CASE("each doubt is a miss with its own reason", "[store][memory_store][case-22][case-27]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  auto const state_parts = parts_where(record.layout, [](part_id const& id) { return id.layer == 0; });
  CHECK(look_up(store, record.question()) == miss_reason::absent);

  REQUIRE(publish(store, record.publication(1, state_parts)) == status::ok);
  CHECK(look_up(store, record.question()) == miss_reason::incomplete);
  CHECK(look_up(store, record.question(state_parts)) == miss_reason::none);
  std::vector<part_id> const unknown{{0, part_kind::keys_values, 0}};
  CHECK(look_up(store, record.question(unknown)) == miss_reason::incomplete);

  REQUIRE(publish(store, record.publication()) == status::ok);
  CHECK(look_up(store, record.question()) == miss_reason::none);

  auto foreign = record.question();
  auto const other_tokens = make_tokens(12, 2);
  foreign.tokens = other_tokens;
  CHECK(look_up(store, foreign) == miss_reason::token_mismatch);
  foreign.tokens = std::span{record.tokens}.first(11);
  CHECK(look_up(store, foreign) == miss_reason::token_mismatch);

  auto misread = record.question();
  auto other_model = make_small_model();
  other_model.head_rows = 7;
  auto const other_layout = *record_layout::make(other_model, 12);
  misread.layout = &other_layout;
  CHECK(look_up(store, misread) == miss_reason::layout_mismatch);

  {
    asked const reader{store, record.question()};
    tamper(reader, record.layout.parts()[3]);
  }
  CHECK(look_up(store, record.question()) == miss_reason::corrupt);
  CHECK(look_up(store, record.question()) == miss_reason::absent);
  CHECK(balanced(store.usage()));
}

TEST_CASE("a flipped bit in any part is found, and costs its record alone", "[store][memory_store][case-27]") {
  auto const records = make_records(2);
  auto const& record = records[0];
  for (auto const& part : record.layout.parts()) {
    memory_store store{ample};
    for (auto const& one : records) REQUIRE(publish(store, one.publication()) == status::ok);
    {
      asked const reader{store, record.question()};
      tamper(reader, part);
    }
    std::vector<part_id> const damaged{part.id};
    auto const others = parts_where(record.layout, [&](part_id const& id) { return id != part.id; });
    CHECK(look_up(store, record.question(others)) == miss_reason::none);
    CHECK(look_up(store, record.question(damaged)) == miss_reason::corrupt);
    CHECK(store.usage().records == 1);
    CHECK(store.usage().free == ample - records[1].bytes());
    CHECK(there(store, records[1]));
  }
}

TEST_CASE("a corrupt record that others lease is served to nobody, and its key can be published anew",
          "[store][memory_store][case-27][case-30]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  REQUIRE(publish(store, record.publication()) == status::ok);
  asked early{store, record.question()};
  REQUIRE(early.hit());
  tamper(early, record.layout.parts()[0]);
  CHECK(look_up(store, record.question()) == miss_reason::corrupt);
  CHECK_FALSE(there(store, record));
  CHECK(store.usage().records == 0);
  CHECK(store.usage().pinned == record.bytes());  // its bytes stay in place for the lease

  REQUIRE(publish(store, record.publication()) == status::ok);
  asked const late{store, record.question()};
  CHECK(late.hit());
  CHECK(late.block().data() != early.block().data());
  CHECK(same_parts(record.layout, late.block(), record.block));
  CHECK(store.usage().pinned == 2 * record.bytes());
  CHECK(early.release() == status::ok);
  CHECK(store.usage().pinned == record.bytes());
  CHECK(balanced(store.usage()));
}

TEST_CASE("a publication that does not fit its layout is refused and leaves nothing",
          "[store][memory_store][case-25][case-26]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 54, 1};
  segment_record const longer{make_small_model(), 374, 1};
  auto const refusal = [&](auto change) {
    auto request = record.publication();
    change(request);
    return publish(store, request);
  };
  using request = publish_request;
  std::vector<part_id> const unknown{{7, part_kind::tail, 0}};
  CHECK(refusal([&](request& r) { r.block = longer.block; }) == status::invalid_shape);
  CHECK(refusal([&](request& r) { r.block = {}; }) == status::invalid_shape);
  CHECK(refusal([&](request& r) { r.digests = r.digests.first(3); }) == status::invalid_shape);
  CHECK(refusal([&](request& r) { r.tokens = longer.tokens; }) == status::invalid_shape);
  CHECK(refusal([&](request& r) { r.layout = &longer.layout; }) == status::invalid_shape);
  CHECK(refusal([&](request& r) { r.layout = nullptr; }) == status::invalid_argument);
  CHECK(refusal([&](request& r) { r.value = -1; }) == status::invalid_argument);
  CHECK(refusal([&](request& r) { r.parts = unknown; }) == status::invalid_argument);

  auto torn = record.block;
  torn[static_cast<std::size_t>(record.layout.parts().back().offset)] ^= std::byte{1};
  CHECK(refusal([&](request& r) { r.block = torn; }) == status::corrupt);

  CHECK(store.usage().records == 0);
  CHECK(store.usage().free == ample);
  CHECK(look_up(store, record.question()) == miss_reason::absent);
}

TEST_CASE("a key that is there is not published with other tokens or another layout", "[store][memory_store]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  REQUIRE(publish(store, record.publication()) == status::ok);

  segment_record const foreign{make_small_model(), 12, 2};
  auto request = foreign.publication();
  request.key = record.key;
  CHECK(publish(store, request) == status::invalid_argument);

  auto wider = make_small_model();
  wider.head_rows = 4;
  segment_record const other{wider, 12, 1};
  CHECK(publish(store, other.publication()) == status::invalid_shape);
  CHECK(look_up(store, record.question()) == miss_reason::none);
}

TEST_CASE("the record with the least value per byte goes first, the least recently used of equals",
          "[store][memory_store]") {
  auto const records = make_records(6);
  memory_store store{3 * records[0].bytes()};
  REQUIRE(publish(store, records[0].publication(30)) == status::ok);
  REQUIRE(publish(store, records[1].publication(10)) == status::ok);
  REQUIRE(publish(store, records[2].publication(20)) == status::ok);
  REQUIRE(publish(store, records[3].publication(40)) == status::ok);
  CHECK_FALSE(there(store, records[1]));
  CHECK(store.usage().records == 3);

  SECTION("of equals the least recently used") {
    memory_store even{3 * records[0].bytes()};
    for (int i = 0; i < 3; ++i)
      REQUIRE(publish(even, records[static_cast<std::size_t>(i)].publication(5)) == status::ok);
    CHECK(there(even, records[0]));  // used: now 1 is the oldest
    REQUIRE(publish(even, records[3].publication(5)) == status::ok);
    CHECK_FALSE(there(even, records[1]));
    REQUIRE(publish(even, records[0].publication(5)) == status::ok);  // published again: used as well
    REQUIRE(publish(even, records[4].publication(5)) == status::ok);
    CHECK_FALSE(there(even, records[2]));
    CHECK(there(even, records[0]));
  }

  SECTION("of equal values the biggest") {
    segment_record const big{make_small_model(), 24, 9};
    memory_store mixed{big.bytes() + 2 * records[0].bytes()};
    REQUIRE(publish(mixed, records[0].publication(10)) == status::ok);
    REQUIRE(publish(mixed, big.publication(10)) == status::ok);
    REQUIRE(publish(mixed, records[1].publication(10)) == status::ok);
    REQUIRE(publish(mixed, records[2].publication(10)) == status::ok);
    CHECK_FALSE(there(mixed, big));
    CHECK(there(mixed, records[0]));
  }
}

TEST_CASE("a valuable record that nobody uses grows old", "[store][memory_store]") {
  auto const records = make_records(13);
  auto const bytes = records[0].bytes();
  memory_store store{2 * bytes};
  // Values that are multiples of the size make whole priorities. The first record has 10; each later one that goes raises
  // the clock by 1, so that the tenth has 10 as well, and is younger.
  REQUIRE(publish(store, records[0].publication(10 * bytes)) == status::ok);
  for (std::size_t i = 1; i <= 10; ++i) {
    REQUIRE(publish(store, records[i].publication(bytes)) == status::ok);
    CHECK(store.usage().records == 2);
  }
  REQUIRE(publish(store, records[11].publication(bytes)) == status::ok);
  CHECK_FALSE(there(store, records[0]));
  CHECK(there(store, records[10]));

  SECTION("unless it is used meanwhile") {
    memory_store warm{2 * bytes};
    REQUIRE(publish(warm, records[0].publication(10 * bytes)) == status::ok);
    for (std::size_t i = 1; i <= 12; ++i) {
      REQUIRE(publish(warm, records[i].publication(bytes)) == status::ok);
      if (i == 6) CHECK(there(warm, records[0]));
    }
    CHECK(there(warm, records[0]));
  }
}

TEST_CASE("leased records stay, and what fits only in their place is refused", "[store][memory_store]") {
  auto const records = make_records(3);
  memory_store store{2 * records[0].bytes()};
  REQUIRE(publish(store, records[0].publication(1)) == status::ok);
  REQUIRE(publish(store, records[1].publication(100)) == status::ok);
  asked cheap{store, records[0].question()};
  REQUIRE(cheap.hit());

  segment_record const big{make_small_model(), 24, 9};
  REQUIRE(big.bytes() > records[0].bytes());
  CHECK(publish(store, big.publication(1000)) == status::capacity_exceeded);
  CHECK(there(store, records[1]));  // nothing was evicted in vain
  CHECK(store.usage().pinned == records[0].bytes());

  REQUIRE(publish(store, records[2].publication(1)) == status::ok);
  CHECK_FALSE(there(store, records[1]));
  CHECK(same_parts(records[0].layout, cheap.block(), records[0].block));

  asked other{store, records[2].question()};
  CHECK(publish(store, records[1].publication(100)) == status::capacity_exceeded);
  CHECK(store.usage().pinned == store.usage().capacity);
  CHECK(cheap.release() == status::ok);
  CHECK(publish(store, records[1].publication(100)) == status::ok);
  CHECK_FALSE(there(store, records[0]));
}

TEST_CASE("a store too small for a record refuses it", "[store][memory_store]") {
  segment_record const record{make_small_model(), 12, 1};
  for (auto const capacity : {record.bytes() - 1, std::int64_t{0}, std::int64_t{-5}}) {
    memory_store store{capacity};
    auto const outcome = publish(store, record.publication());
    CHECK(outcome == status::capacity_exceeded);
    CHECK(outcome.found() == record.bytes());
    CHECK(balanced(store.usage()));
    CHECK(look_up(store, record.question()) == miss_reason::absent);
  }
  memory_store exact{record.bytes()};
  CHECK(publish(exact, record.publication()) == status::ok);
}

TEST_CASE("a record that two ranks write is read by one, two or four", "[store][memory_store][case-21]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  auto const& layout = record.layout;
  // Each rank's block and digests are right for its own parts alone.
  auto const of_rank = [&](int rank) {
    auto part = record;
    for (std::size_t i = 0; i < layout.parts().size(); ++i) {
      if (layout.parts()[i].id.head % 2 == rank) continue;
      std::memset(part.block.data() + layout.parts()[i].offset, 0xee,
                  static_cast<std::size_t>(layout.parts()[i].bytes));
      part.digests[i] = {};
    }
    return part;
  };
  auto const first = of_rank(0);
  auto const second = of_rank(1);
  CHECK(publish(store, first.publication()) == status::corrupt);  // not all of its parts are there

  REQUIRE(publish(store, first.publication(1, rank_parts(layout, 0, 2))) == status::ok);
  CHECK(look_up(store, record.question(rank_parts(layout, 0, 2))) == miss_reason::none);
  CHECK(look_up(store, record.question(rank_parts(layout, 1, 2))) == miss_reason::incomplete);
  CHECK(look_up(store, record.question()) == miss_reason::incomplete);
  CHECK(store.usage().held == record.bytes());

  asked const before{store, record.question(rank_parts(layout, 0, 4))};
  REQUIRE(before.hit());
  REQUIRE(publish(store, second.publication(1, rank_parts(layout, 1, 2))) == status::ok);
  CHECK(store.usage().records == 1);
  asked const whole{store, record.question()};
  CHECK(whole.hit());
  CHECK(same_parts(layout, whole.block(), record.block));
  CHECK(whole.block().data() == before.block().data());
  for (int ranks : {2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(look_up(store, record.question(rank_parts(layout, rank, ranks))) == miss_reason::none);
    }
  }
}

TEST_CASE("attention without state, or state without attention, is no record", "[store][memory_store][case-21]") {
  segment_record const record{make_small_model(), 12, 1};
  for (std::int32_t layer : {0, 1}) {
    memory_store store{ample};
    auto const half = parts_where(record.layout, [&](part_id const& id) { return id.layer == layer; });
    REQUIRE(publish(store, record.publication(1, half)) == status::ok);
    CHECK(look_up(store, record.question()) == miss_reason::incomplete);
  }
}

TEST_CASE("parts that were not published show no other record's bytes", "[store][memory_store][case-17]") {
  auto const records = make_records(2);
  memory_store store{records[0].bytes()};
  REQUIRE(publish(store, records[0].publication()) == status::ok);
  auto const half = rank_parts(records[1].layout, 0, 2);
  REQUIRE(publish(store, records[1].publication(1, half)) == status::ok);  // in the place of the first
  asked const reader{store, records[1].question(half)};
  REQUIRE(reader.hit());
  std::vector<std::byte> expected(records[1].block.size());
  for (auto const& part : records[1].layout.parts()) {
    if (part.id.head % 2 != 0) continue;
    std::memcpy(expected.data() + part.offset, records[1].block.data() + part.offset,
                static_cast<std::size_t>(part.bytes));
  }
  CHECK(same_bytes(reader.block(), expected));
}

TEST_CASE("tenants never share a record", "[store][memory_store][case-32]") {
  memory_store store{ample};
  segment_record const blue{make_small_model(), 12, 1, "blue"};
  segment_record const green{make_small_model(), 12, 1, "green"};
  segment_record const nobody{make_small_model(), 12, 1};
  REQUIRE(blue.tokens == green.tokens);
  REQUIRE(publish(store, blue.publication()) == status::ok);
  CHECK(look_up(store, blue.question()) == miss_reason::none);
  CHECK(look_up(store, green.question()) == miss_reason::absent);
  CHECK(look_up(store, nobody.question()) == miss_reason::absent);
}

TEST_CASE("a new epoch makes all older records misses at once", "[store][memory_store][case-29]") {
  memory_store store{ample};
  for (std::int32_t seed = 0; seed < 8; ++seed) {
    REQUIRE(publish(store, segment_record{make_small_model(), 12, seed}.publication()) == status::ok);
  }
  for (std::int32_t seed = 0; seed < 8; ++seed) {
    segment_record const updated{make_small_model(), 12, seed, {}, 1};
    CHECK(look_up(store, updated.question()) == miss_reason::absent);
  }
}

TEST_CASE("records are immutable: what is there is kept, whatever is published or written later",
          "[store][memory_store][case-18]") {
  memory_store store{ample};
  segment_record record{make_small_model(), 12, 1};
  auto const original = record.block;
  auto const before = record.digests;
  REQUIRE(publish(store, record.publication()) == status::ok);
  std::ranges::fill(record.block, std::byte{0xff});  // the publisher's memory is its own again
  asked const reader{store, record.question()};
  REQUIRE(reader.hit());

  record.digests = *part_digests(record.layout, record.block);
  CHECK(publish(store, record.publication()) == status::ok);
  asked const later{store, record.question()};
  CHECK(later.block().data() == reader.block().data());
  CHECK(*part_digests(record.layout, reader.block()) == before);
  CHECK(same_parts(record.layout, reader.block(), original));
}

TEST_CASE("a ticket is released once", "[store][memory_store][case-19]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  REQUIRE(publish(store, record.publication()) == status::ok);
  auto const question = record.question();
  auto const first = *store.begin({&question, 1});
  auto const second = *store.begin({&question, 1});
  CHECK(first != ticket::none);
  CHECK(first != second);

  CHECK(store.release(first) == status::ok);
  CHECK(store.release(first) == status::not_found);
  CHECK(store.usage().pinned == record.bytes());  // the second lease is untouched by the double release
  lookup_result result;
  CHECK(store.poll(first, {&result, 1}) == status::not_found);
  CHECK(store.poll(second, {&result, 1}) == status::ok);
  CHECK(store.release(second) == status::ok);
  CHECK(store.release(second) == status::not_found);
  CHECK(store.release(ticket::none) == status::not_found);
  CHECK(store.release(ticket{12345}) == status::not_found);
  CHECK(store.usage().pinned == 0);
  CHECK(store.usage().held == record.bytes());
}

TEST_CASE("a lease ends at the first verb after its fence is reached", "[store][memory_store][case-19]") {
  auto const records = make_records(2);
  memory_store store{records[0].bytes()};
  REQUIRE(publish(store, records[0].publication()) == status::ok);
  std::atomic<bool> over{false};
  asked reader{store, records[0].question()};
  auto const name = reader.name();
  CHECK(reader.release({reached, &over}) == status::ok);
  CHECK(store.release(name) == status::not_found);
  CHECK(publish(store, records[1].publication()) == status::capacity_exceeded);
  CHECK(store.usage().pinned == records[0].bytes());

  over = true;
  CHECK(publish(store, records[1].publication()) == status::ok);
  CHECK_FALSE(there(store, records[0]));
  CHECK(store.usage().pinned == 0);

  asked done{store, records[1].question()};
  CHECK(done.release({reached, &over}) == status::ok);
  CHECK(store.usage().pinned == 0);
}

TEST_CASE("what comes late for an old ticket or an old record meets no new one", "[store][memory_store][case-30]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  REQUIRE(publish(store, record.publication()) == status::ok);

  // The work on the first lease lasts longer than the record: that is damaged, found corrupt and published anew.
  std::atomic<bool> over{false};
  asked early{store, record.question()};
  auto const old_name = early.name();
  auto const old_block = early.block();
  REQUIRE(early.release({reached, &over}) == status::ok);
  {
    asked const reader{store, record.question()};
    tamper(reader, record.layout.parts()[0]);
  }
  REQUIRE(look_up(store, record.question()) == miss_reason::corrupt);
  REQUIRE(publish(store, record.publication()) == status::ok);
  asked const late{store, record.question()};
  REQUIRE(late.hit());
  REQUIRE(late.name() != old_name);
  REQUIRE(late.block().data() != old_block.data());
  CHECK(store.usage().pinned == 2 * record.bytes());

  // Late calls with the old ticket are refused, and the old work's end frees the old record's bytes alone.
  lookup_result result;
  CHECK(store.poll(old_name, {&result, 1}) == status::not_found);
  CHECK(store.release(old_name) == status::not_found);
  CHECK(store.usage().pinned == 2 * record.bytes());
  over = true;
  CHECK(store.release(ticket::none) == status::not_found);
  CHECK(store.usage().pinned == record.bytes());
  CHECK(same_parts(record.layout, late.block(), record.block));
  CHECK(look_up(store, record.question()) == miss_reason::none);
}

TEST_CASE("the same segment twice in one prompt is leased twice", "[store][memory_store][case-20]") {
  auto const records = make_records(2);
  memory_store store{ample};
  REQUIRE(publish(store, records[0].publication()) == status::ok);
  std::array const questions{records[0].question(), records[1].question(), records[0].question()};
  auto const name = store.begin(questions);
  REQUIRE(name);
  CHECK(store.usage().pinned == records[0].bytes());
  std::array<lookup_result, 3> results;
  REQUIRE(store.poll(*name, results) == status::ok);
  CHECK(results[0].state == lookup_state::hit);
  CHECK(results[1].reason == miss_reason::absent);
  CHECK(results[2].block.data() == results[0].block.data());
  CHECK(store.release(*name) == status::ok);
  CHECK(store.usage().pinned == 0);
  CHECK(balanced(store.usage()));

  // Corrupt, it is a miss twice and dropped once.
  {
    asked const reader{store, records[0].question()};
    tamper(reader, records[0].layout.parts()[0]);
  }
  auto const again = store.begin(questions);
  REQUIRE(store.poll(*again, results) == status::ok);
  CHECK(results[0].reason == miss_reason::corrupt);
  CHECK(results[2].reason == miss_reason::corrupt);
  CHECK(store.usage().free == ample);
  CHECK(store.release(*again) == status::ok);
  CHECK(store.usage().free == ample);
}

TEST_CASE("two requests that miss the same segment both publish it, and the first one's is kept",
          "[store][memory_store][case-20]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  asked const first{store, record.question()};
  asked const second{store, record.question()};
  CHECK(first.reason() == miss_reason::absent);
  CHECK(second.reason() == miss_reason::absent);
  REQUIRE(publish(store, record.publication()) == status::ok);
  asked const reader{store, record.question()};
  REQUIRE(publish(store, record.publication()) == status::ok);
  CHECK(store.usage().records == 1);
  CHECK(asked(store, record.question()).block().data() == reader.block().data());

  // A look-up stands for the moment at which it began, and says the same each time.
  lookup_result result;
  REQUIRE(store.poll(first.name(), {&result, 1}) == status::ok);
  CHECK(result.reason == miss_reason::absent);
}

TEST_CASE("verbs refuse what they cannot read", "[store][memory_store]") {
  memory_store store{ample};
  segment_record const record{make_small_model(), 12, 1};
  std::array questions{record.question(), record.question()};
  questions[1].layout = nullptr;
  CHECK(store.begin(questions).error() == status::invalid_argument);

  auto const name = *store.begin(std::span{questions}.first(1));
  std::array<lookup_result, 2> results;
  CHECK(store.poll(name, results) == status::invalid_shape);
  CHECK(store.poll(ticket::none, std::span{results}.first(1)) == status::not_found);
  CHECK(store.release(name) == status::ok);

  auto const request = record.publication();
  CHECK(store.publish({&request, 1}, {}) == status::invalid_shape);
  CHECK(store.usage().records == 0);

  auto const nothing = store.begin({});
  REQUIRE(nothing);
  CHECK(store.poll(*nothing, {}) == status::ok);
  CHECK(store.release(*nothing) == status::ok);
  CHECK(store.publish({}, {}) == status::ok);
}

TEST_CASE("a batch of publications keeps those that are right and tells the first that is not",
          "[store][memory_store]") {
  auto const records = make_records(3);
  memory_store store{ample};
  std::array requests{records[0].publication(), records[1].publication(), records[2].publication()};
  requests[1].value = -1;
  std::array<status, 3> outcomes;
  CHECK(store.publish(requests, outcomes) == status::invalid_argument);
  CHECK(outcomes[0] == status::ok);
  CHECK(outcomes[1] == status::invalid_argument);
  CHECK(outcomes[2] == status::ok);
  CHECK(there(store, records[0]));
  CHECK_FALSE(there(store, records[1]));
  CHECK(there(store, records[2]));
}

TEST_CASE("an observer sees hits, misses by reason, publications and evictions", "[store][memory_store][case-22]") {
  auto const records = make_records(2);
  counters watch;
  memory_store store{records[0].bytes(), &watch};
  static_cast<void>(look_up(store, records[0].question()));
  REQUIRE(publish(store, records[0].publication()) == status::ok);
  CHECK(publish(store, records[0].publication(-1)) == status::invalid_argument);
  {
    asked const reader{store, records[0].question()};
    lookup_result result;
    CHECK(store.poll(reader.name(), {&result, 1}) == status::ok);  // an answer is counted once
    tamper(reader, records[0].layout.parts()[0]);
  }
  auto const foreign_tokens = make_tokens(12, 5);
  auto foreign = records[0].question();
  foreign.tokens = foreign_tokens;
  static_cast<void>(look_up(store, foreign));
  static_cast<void>(look_up(store, records[0].question()));
  REQUIRE(publish(store, records[0].publication()) == status::ok);
  REQUIRE(publish(store, records[1].publication()) == status::ok);
  CHECK(watch.counts == std::map<std::string, std::int64_t>{{"store.hit", 1},
                                                            {"store.miss.absent", 1},
                                                            {"store.miss.token_mismatch", 1},
                                                            {"store.miss.corrupt", 1},
                                                            {"store.publish", 3},
                                                            {"store.evict", 1}});
}

namespace {

struct hammer_counts {
  std::atomic<std::int64_t> hits{0};
  std::atomic<std::int64_t> wrong{0};
};

/// Looks a record up, checks it or publishes it, whole or one half, and lets it go, again and again.
void hammer(memory_store& store, std::vector<segment_record> const& records, std::uint32_t seed,
            hammer_counts& counts) {
  std::mt19937 random(seed);
  std::atomic<bool> over{false};
  for (int i = 0; i < 1500; ++i) {
    auto const& record = records[random() % records.size()];
    auto const choice = static_cast<int>(random() % 4);
    auto const parts = choice < 2 ? rank_parts(record.layout, choice, 2) : std::vector<part_id>{};
    asked reader{store, record.question(parts)};
    if (reader.hit()) {
      ++counts.hits;
      for (auto const& part : record.layout.parts()) {
        bool const wanted = parts.empty() || part.id.head % 2 == choice;
        if (wanted && !same_bytes(bytes_of(part, reader.block()), bytes_of(part, record.block))) ++counts.wrong;
      }
    } else {
      if (reader.reason() != miss_reason::absent && reader.reason() != miss_reason::incomplete) ++counts.wrong;
      auto const outcome = publish(store, record.publication(static_cast<std::int64_t>(random() % 9), parts));
      if (outcome != status::ok && outcome != status::capacity_exceeded) ++counts.wrong;
    }
    over = random() % 2 == 0;
    if (reader.release({reached, &over}) != status::ok) ++counts.wrong;
    if (!balanced(store.usage())) ++counts.wrong;
    over = true;
    static_cast<void>(store.release(ticket::none));  // ends the lease before its fence goes
  }
}

template <class Fn>
void on_threads(std::uint32_t count, Fn&& fn) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < count; ++i) threads.emplace_back([&fn, i] { fn(i); });
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("eight threads that look up, publish and release see whole and right records only", "[store][memory_store]") {
  auto const records = make_records(12, 16);
  memory_store store{6 * records[0].bytes()};
  hammer_counts counts;
  on_threads(8, [&](std::uint32_t seed) { hammer(store, records, seed, counts); });
  CHECK(counts.wrong == 0);
  CHECK(counts.hits > 0);
  CHECK(store.usage().pinned == 0);
  CHECK(balanced(store.usage()));
}

TEST_CASE("a ticket that some threads poll and one releases is answered, pending or gone, and leaves no lease",
          "[store][memory_store]") {
  auto const records = make_records(4, 64);
  memory_store store{ample};
  for (auto const& record : records) REQUIRE(publish(store, record.publication()) == status::ok);
  std::atomic<std::int64_t> wrong{0};
  for (int round = 0; round < 100; ++round) {
    std::vector<lookup_request> questions;
    for (auto const& record : records) questions.push_back(record.question());
    auto const name = *store.begin(questions);
    on_threads(4, [&](std::uint32_t i) {
      if (i == 3) {
        if (store.release(name) != status::ok) ++wrong;
        return;
      }
      std::array<lookup_result, 4> results;
      auto const polled = store.poll(name, results);
      if (polled != status::ok && polled != status::not_found) ++wrong;
      for (auto const& result : results) {
        if (result.state == lookup_state::miss) ++wrong;
      }
    });
    static_cast<void>(store.release(name));
  }
  CHECK(wrong == 0);
  CHECK(store.usage().pinned == 0);
  CHECK(store.usage().records == 4);
}
