// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cstdint>
#include <utility>

#include "hypic.h"
#include "support/failing_allocation.hpp"

using namespace hypic::test;

namespace {

/// A store of C functions that allocates nothing and counts its tickets.
struct counting_store {
  std::uint64_t begun = 0;
  std::uint64_t released = 0;

  hypic_store* make() {
    hypic_store_table table{};
    table.size = sizeof table;
    table.context = this;
    table.begin = [](void* of, hypic_lookup const*, std::int64_t, std::uint64_t* ticket) {
      *ticket = ++static_cast<counting_store*>(of)->begun;
      return hypic_status{};
    };
    table.poll = [](void*, std::uint64_t, hypic_answer*, std::int64_t) { return hypic_status{}; };
    table.publish = [](void*, hypic_publication const*, std::int64_t, hypic_status*) { return hypic_status{}; };
    table.release = [](void* of, std::uint64_t, hypic_reached, void*) {
      ++static_cast<counting_store*>(of)->released;
      return hypic_status{};
    };
    hypic_store* store = nullptr;
    REQUIRE(hypic_table_store_create(&table, &store).code == HYPIC_OK);
    return store;
  }
};

int never(void*) { return 0; }

}  // namespace

TEST_CASE("a look-up that finds no memory leaves no ticket in a store of C functions", "[adapter][c_api][allocation]") {
  counting_store counts;
  auto* const store = counts.make();
  int failures = 0;
  std::uint64_t ticket = 0;
  for (int allowed = 0;; ++allowed) {
    auto const [code, failed] = [&] {
      failing_allocation const failing{allowed};
      auto const outcome = hypic_store_begin(store, nullptr, 0, &ticket);
      return std::pair{outcome.code, failing.failed()};
    }();
    CAPTURE(allowed);
    if (!failed) {
      REQUIRE(code == HYPIC_OK);
      break;
    }
    ++failures;
    REQUIRE(code == HYPIC_BACKEND_FAILURE);
    REQUIRE(counts.begun == counts.released);
  }
  CHECK(failures > 0);
  CHECK(counts.begun == counts.released + 1);

  // A release that fails has not happened either, and the next one does.
  auto const refused = [&] {
    failing_allocation const failing{0};
    return hypic_store_release(store, ticket, never, nullptr).code;
  }();
  CHECK(refused != HYPIC_OK);
  CHECK(counts.begun == counts.released + 1);
  CHECK(hypic_store_release(store, ticket, nullptr, nullptr).code == HYPIC_OK);
  CHECK(counts.begun == counts.released);
  hypic_store_destroy(store);
}
