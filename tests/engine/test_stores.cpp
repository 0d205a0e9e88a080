// SPDX-License-Identifier: Apache-2.0
// A store that fails costs time, never a result.
#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/serving_test.hpp"
#include "hypic/store/memory_store.hpp"
#include "support/failing_store.hpp"

namespace {

using engine_test::models_under_test;
using engine_test::same_bits;
using engine_test::state_of;
using engine_test::text_tokens;
using engine_test::tokens;
using hypic::miss_reason;
using hypic::test::failing_store;
using hypic_engine::engine;
using hypic_engine::serve;

constexpr std::int64_t ample = std::int64_t{1} << 30;

std::vector<hypic::prompt_span> prompt_of(engine const& with) {
  return {with.cached(text_tokens("ruth.txt", 0, 60)), with.cached(text_tokens("jonah.txt", 0, 40)),
          with.fresh(text_tokens("james.txt", 0, 20))};
}

/// A store that answers every poll with an error.
class mute_store final : public hypic::cache_store {
 public:
  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const>) noexcept override {
    return static_cast<hypic::ticket>(++begun);
  }
  hypic::status poll(hypic::ticket, std::span<hypic::lookup_result>) noexcept override {
    return {hypic::status::backend_failure, "mute_store"};
  }
  hypic::status publish(std::span<hypic::publish_request const>, std::span<hypic::status> outcomes) noexcept override {
    for (auto& outcome : outcomes) outcome = hypic::status::backend_failure;
    return hypic::status::backend_failure;
  }
  hypic::status release(hypic::ticket, hypic::fence) noexcept override {
    ++released;
    return hypic::status::backend_failure;
  }
  std::uint64_t begun = 0;
  std::uint64_t released = 0;
};

TEST_CASE("a store that fails at one verb or at all gives the same bits, and the failures are counted") {
  for (auto const& at : models_under_test()) {
    hypic::memory_store good(ample);
    engine healthy(at.runs, good, {});
    auto expected = serve(healthy, prompt_of(healthy));
    for (unsigned verbs = 0; verbs < 16; ++verbs) {
      CAPTURE(at.name, verbs);
      hypic::memory_store inner(ample);
      failing_store store(inner);
      store.on_begin.fails = (verbs & 1U) != 0;
      store.on_poll.fails = (verbs & 2U) != 0;
      store.on_publish.fails = (verbs & 4U) != 0;
      store.on_release.fails = (verbs & 8U) != 0;
      engine serving(at.runs, store, {});
      for (int round = 0; round < 2; ++round) {
        auto served = serve(serving, prompt_of(serving));
        CHECK(same_bits(served.result.logits, expected.result.logits));
        CHECK(same_bits(state_of(at.runs, served.memory), state_of(at.runs, expected.memory)));
        bool const lookup_fails = store.on_begin.fails || store.on_poll.fails;
        bool const hit = round == 1 && !lookup_fails && !store.on_publish.fails;
        for (std::size_t i : {0U, 1U}) {
          REQUIRE(served.spans[i].lookup);
          CHECK(served.spans[i].lookup->hit == hit);
          auto const reason = lookup_fails ? miss_reason::store_failure : miss_reason::absent;
          if (!hit) CHECK(served.spans[i].lookup->reason == reason);
          CHECK(served.spans[i].tokens_prefilled == (hit ? 0 : served.spans[i].tokens));
        }
      }
      auto const& counted = serving.failures();
      CHECK(counted.begin == store.on_begin.failures);
      CHECK(counted.publish == 2 * store.on_publish.failures);  // two records a call
      CHECK(counted.release == store.on_release.failures);
    }
  }
}

/// A store in front of another that takes its time: a look-up is pending for a few polls.
class slow_store final : public hypic::cache_store {
 public:
  explicit slow_store(hypic::cache_store& inner) : inner_(inner) {}
  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const> requests) noexcept override {
    polls_ = 0;
    return inner_.begin(requests);
  }
  hypic::status poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept override {
    if (++polls_ > 5) return inner_.poll(which, results);
    std::fill(results.begin(), results.end(), hypic::lookup_result{});
    return hypic::status::ok;
  }
  hypic::status publish(std::span<hypic::publish_request const> requests,
                        std::span<hypic::status> outcomes) noexcept override {
    return inner_.publish(requests, outcomes);
  }
  hypic::status release(hypic::ticket which, hypic::fence after) noexcept override {
    return inner_.release(which, after);
  }

 private:
  hypic::cache_store& inner_;
  int polls_ = 0;
};

TEST_CASE("a look-up that is pending at first is waited for") {
  auto const& at = models_under_test().front();
  hypic::memory_store inner(ample);
  slow_store store(inner);
  engine serving(at.runs, store, {});
  auto const cold = serve(serving, prompt_of(serving));
  auto const warm = serve(serving, prompt_of(serving));
  CHECK(warm.spans[0].lookup->hit);
  CHECK(warm.spans[1].lookup->hit);
  CHECK(same_bits(warm.result.logits, cold.result.logits));
}

TEST_CASE("a store whose polls are errors is outlived and counted") {
  auto const& at = models_under_test().front();
  hypic::memory_store good(ample);
  engine healthy(at.runs, good, {});
  auto expected = serve(healthy, prompt_of(healthy));
  mute_store store;
  engine serving(at.runs, store, {});
  auto served = serve(serving, prompt_of(serving));
  CHECK(same_bits(served.result.logits, expected.result.logits));
  CHECK(served.spans[0].lookup->reason == miss_reason::store_failure);
  CHECK(serving.failures().poll == 1);
  CHECK(serving.failures().publish == 2);
  CHECK(serving.failures().release == 1);
  CHECK(store.released == store.begun);
}

TEST_CASE("a store that has no room serves every request from the records as they would have been stored") {
  auto const& at = models_under_test().front();
  hypic::memory_store good(ample);
  engine healthy(at.runs, good, {});
  auto expected = serve(healthy, prompt_of(healthy));
  hypic::memory_store full(0);
  engine serving(at.runs, full, {});
  for (int round = 0; round < 2; ++round) {
    auto served = serve(serving, prompt_of(serving));
    CHECK(same_bits(served.result.logits, expected.result.logits));
    CHECK(served.spans[0].lookup->reason == miss_reason::absent);
  }
  CHECK(serving.failures().publish == 4);
}

TEST_CASE("tenants and models never share records") {
  auto const& models = models_under_test();
  hypic::memory_store store(ample);
  for (auto const& at : models) {
    for (std::string const tenant : {"", "one", "two"}) {
      CAPTURE(at.name, tenant);
      engine serving(at.runs, store, {.tenant = tenant});
      CHECK_FALSE(serve(serving, prompt_of(serving)).spans[0].lookup->hit);
      CHECK(serve(serving, prompt_of(serving)).spans[0].lookup->hit);
    }
  }
}

}  // namespace
