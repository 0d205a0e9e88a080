// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <array>
#include <memory>
#include <utility>

#include "hypic/store/contract_kit.hpp"
#include "hypic/store/memory_store.hpp"
#include "store/store_data.hpp"
#include "support/failing_allocation.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

/// Calls fn with no allocation allowed, then one, then two, and so on, until it needs no more. Each outcome before must be
/// `failure`, and `check` hold after it. Returns how many calls failed.
template <class Fn, class Check>
int fail_each_allocation(status::code failure, Fn&& fn, Check&& check) {
  for (int allowed = 0;; ++allowed) {
    auto const [outcome, refused] = [&] {
      failing_allocation const failing{allowed};
      status const made = fn();
      return std::pair{made, failing.failed()};
    }();
    CAPTURE(allowed);
    REQUIRE(outcome == (refused ? failure : status::ok));
    if (!refused) return allowed;
    check();
  }
}

}  // namespace

TEST_CASE("every allocation that fails while a record is published is a status and leaves nothing",
          "[store][allocation]") {
  memory_store store{1 << 20};
  segment_record const record{make_small_model(), 12, 1};
  auto const parts = parts_where(record.layout, [](part_id const&) { return true; });
  auto const failed = fail_each_allocation(
      status::backend_failure, [&] { return publish(store, record.publication(1, parts)); },
      [&] {
        REQUIRE(store.usage().records == 0);
        REQUIRE(store.usage().free == store.usage().capacity);
      });
  CHECK(failed > 5);
  CHECK(look_up(store, record.question()) == miss_reason::none);
  CHECK(store.usage().held == record.bytes());
}

TEST_CASE("every allocation that fails while a look-up begins is a status and leaves no lease", "[store][allocation]") {
  memory_store store{1 << 20};
  segment_record const record{make_small_model(), 12, 1};
  REQUIRE(publish(store, record.publication()) == status::ok);
  auto const parts = parts_where(record.layout, [](part_id const&) { return true; });
  std::array const questions{record.question(parts), record.question()};
  auto name = ticket::none;
  auto const failed = fail_each_allocation(
      status::backend_failure,
      [&] {
        auto const begun = store.begin(questions);
        if (begun) {
          name = *begun;
          return status{};
        }
        return begun.error();
      },
      [&] { REQUIRE(store.usage().pinned == 0); });
  CHECK(failed > 2);

  // What follows allocates nothing.
  std::array<lookup_result, 2> results;
  auto const [polled, released] = [&] {
    failing_allocation const failing{0};
    auto const first = store.poll(name, results);
    return std::pair{first, store.release(name)};
  }();
  CHECK(polled == status::ok);
  CHECK(results[0].state == lookup_state::hit);
  CHECK(released == status::ok);
  CHECK(store.usage().pinned == 0);
}

TEST_CASE("names, layouts and digests that find no memory say so", "[store][allocation]") {
  auto const model = make_model();
  segment_record const record{model, 12, 1};
  auto const nothing = [] {};
  CHECK(fail_each_allocation(
            status::out_of_memory, [&] { return make_record_key({.tokens = record.tokens, .model = "test"}).error(); },
            nothing) > 0);
  CHECK(fail_each_allocation(
            status::out_of_memory, [&] { return model_fingerprint(model, "weights").error(); }, nothing) > 0);
  CHECK(fail_each_allocation(
            status::out_of_memory, [&] { return record_layout::make(model, 12).error(); }, nothing) > 0);
  CHECK(fail_each_allocation(
            status::out_of_memory, [&] { return part_digests(record.layout, record.block).error(); }, nothing) > 0);
}

TEST_CASE("the contract kit that finds no memory says so, wherever that happens", "[store][allocation][contract]") {
  static constexpr std::int64_t capacity = 256 * 1024;
  store_under_test const subject{
      .make = [](void*) -> std::unique_ptr<cache_store> { return std::make_unique<memory_store>(capacity); },
      .capacity_bytes = capacity,
      .threads = 2};
  int failed = 0;
  // Far enough for every clause: steps grow, as each clause allocates much the same again and again.
  for (int allowed = 0;; allowed += 1 + allowed / 16) {
    bool refused = false;
    auto const reports = [&] {
      failing_allocation const failing{allowed};
      auto made = check_store_contract(subject);
      refused = failing.failed();
      return made;
    }();
    CAPTURE(allowed);
    if (!refused) {
      REQUIRE(reports);
      break;
    }
    ++failed;
    REQUIRE(reports.error() == status::out_of_memory);
  }
  CHECK(failed > 50);
}
