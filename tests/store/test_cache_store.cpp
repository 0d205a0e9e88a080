// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <set>
#include <string>

#include "hypic/store/memory_store.hpp"
#include "store/store_data.hpp"
#include "support/failing_store.hpp"

using namespace hypic;
using namespace hypic::test;

TEST_CASE("every miss reason has words of its own", "[store][cache_store][case-22]") {
  CHECK(std::string{to_string(miss_reason::absent)} == "absent");
  std::set<std::string> words;
  for (int reason = 0; reason <= 7; ++reason) words.insert(to_string(static_cast<miss_reason>(reason)));
  CHECK(words.size() == 8);  // the last one is none of the enumerators
}

TEST_CASE("a store that fails at a verb says so at that verb alone", "[store][cache_store]") {
  memory_store inner{1 << 20};
  failing_store store{inner};
  segment_record const record{make_small_model(), 12, 1};

  store.on_publish.fails = true;
  CHECK(publish(store, record.publication()) == status::backend_failure);
  CHECK(inner.usage().records == 0);
  store.on_publish.fails = false;
  CHECK(publish(store, record.publication()) == status::ok);

  store.on_begin.fails = true;
  auto const question = record.question();
  CHECK(store.begin({&question, 1}).error() == status::backend_failure);
  store.on_begin.fails = false;

  store.on_poll.fails = true;
  CHECK(look_up(store, question) == miss_reason::store_failure);
  CHECK(inner.usage().pinned == 0);
  store.on_poll.fails = false;

  asked reader{store, question};
  CHECK(reader.hit());
  store.on_release.fails = true;
  CHECK(store.release(reader.name()) == status::backend_failure);
  CHECK(inner.usage().pinned == record.bytes());
  store.on_release.fails = false;
  CHECK(reader.release() == status::ok);
  CHECK(inner.usage().pinned == 0);

  CHECK(store.on_publish.calls == 2);
  CHECK(store.on_publish.failures == 1);
  CHECK(store.on_release.calls == 3);
}
