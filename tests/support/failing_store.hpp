// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "hypic/store/cache_store.hpp"

namespace hypic::test {

/// One verb of a failing_store: whether it fails, and how often it was called and failed.
struct failing_verb {
  std::atomic<bool> fails{false};
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> failures{0};

  /// Counts a call; true if it is to fail.
  bool enter() noexcept {
    ++calls;
    if (!fails) return false;
    ++failures;
    return true;
  }
};

/// A store in front of another, any verb of which can be told to fail:
///   begin    gives no ticket, but backend_failure
///   poll     says of every record that the store could not tell
///   publish  keeps nothing; every outcome is backend_failure
///   release  fails, and the inner store keeps the lease
class failing_store final : public cache_store {
 public:
  explicit failing_store(cache_store& inner) noexcept : inner_(inner) {}

  failing_verb on_begin;
  failing_verb on_poll;
  failing_verb on_publish;
  failing_verb on_release;

  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    if (on_begin.enter()) return failure;
    return inner_.begin(requests);
  }

  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    if (!on_poll.enter()) return inner_.poll(which, results);
    std::ranges::fill(results, lookup_result{lookup_state::miss, miss_reason::store_failure, {}});
    return status::ok;
  }

  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (!on_publish.enter()) return inner_.publish(requests, outcomes);
    std::ranges::fill(outcomes, failure);
    return failure;
  }

  status release(ticket which, fence after = {}) noexcept override {
    if (on_release.enter()) return failure;
    return inner_.release(which, after);
  }

 private:
  static constexpr status failure{status::backend_failure, "failing_store"};

  cache_store& inner_;
};

}  // namespace hypic::test
