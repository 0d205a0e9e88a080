// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <thread>

#include "hypic/store/cache_store.hpp"
#include "hypic/store/memory_store.hpp"

/// Stores in front of a good one, for tests of the contract kit.
namespace hypic::test {

inline constexpr std::int64_t contract_capacity = 256 * 1024;

/// No fault of its own. Each broken store overrides a verb or two.
class front : public cache_store {
 public:
  result<ticket> begin(std::span<lookup_request const> requests) noexcept override { return inner.begin(requests); }
  status poll(ticket which, std::span<lookup_result> results) noexcept override { return inner.poll(which, results); }
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    return inner.publish(requests, outcomes);
  }
  status release(ticket which, fence after = {}) noexcept override { return inner.release(which, after); }

  /// The key under which the good store has what is asked for by `key`.
  virtual record_key inner_key(record_key key) const { return key; }

  memory_store inner{contract_capacity};

 protected:
  /// Most faults are of the thread that made the store alone: calls from several threads are clauses of their own.
  bool at_home() const noexcept { return std::this_thread::get_id() == maker_; }

 private:
  std::thread::id maker_ = std::this_thread::get_id();
};

/// Gives each answer late: the n-th of a batch at the (n + 4)-th poll.
std::unique_ptr<cache_store> make_slow_store();

/// A store whose one fault breaks one clause of the contract.
struct broken_store {
  char const* verb;
  char const* fault;
  char const* clause;
  std::unique_ptr<cache_store> (*make)(void*);
};

/// All of them, by the verb that they break.
std::span<broken_store const> broken_stores();

}  // namespace hypic::test
