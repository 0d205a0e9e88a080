// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "hypic/request/assembler.hpp"
#include "hypic/request/schedule.hpp"
#include "support/failing_allocation.hpp"

using namespace hypic;
using hypic::test::failing_allocation;

namespace {

/// Calls `make` with no allocation allowed, then one, then two, and so on, until it needs no more. Each outcome before
/// must be out_of_memory. Returns how many calls failed.
template <class Make>
int fail_each_allocation(Make&& make) {
  for (int allowed = 0;; ++allowed) {
    bool refused = false;
    status const outcome = [&] {
      failing_allocation const failing{allowed};
      auto const made = make();
      refused = failing.failed();
      return made.error();
    }();
    CAPTURE(allowed);
    REQUIRE(outcome == (refused ? status::out_of_memory : status::ok));
    if (!refused) return allowed;
  }
}

/// Copies of a value that were made before allocations fail.
template <class T>
class copies_of {
 public:
  explicit copies_of(T const& value) : copies_(200, value) {}
  T take() {
    T one = std::move(copies_.back());
    copies_.pop_back();
    return one;
  }

 private:
  std::vector<T> copies_;
};

}  // namespace

TEST_CASE("Every allocation that fails while a request is planned is a status", "[request][allocation]") {
  model_layout layout;
  layout.layers.emplace_back(linear_layer{
      .family = family_id::retnet, .dims = {1, 1, 4, 4}, .rotary = rotary_embedding{.frequencies = {1.0, 0.5}}});
  layout.layers.emplace_back(
      attention_layer{.query_heads = 1, .kv_heads = 1, .key_dim = 4, .value_dim = 4, .rotary = {}});
  std::vector<prompt_span> spans(2);
  spans[0] = {span_kind::fresh, std::vector<std::int32_t>(3), {}};
  spans[1] = {span_kind::cached, std::vector<std::int32_t>(12), {}};

  CHECK(fail_each_allocation([&] { return plan_request(layout, spans, {}); }) > 2);
  auto const plan = *plan_request(layout, spans, {});
  CHECK(fail_each_allocation([&] { return slice(plan, 0, 2); }) > 2);
  copies_of<std::vector<batch_request>> requests({{plan, -1, 0}});
  CHECK(fail_each_allocation([&] { return plan_batch(requests.take()); }) > 2);

  auto const batch = *plan_batch({{plan, -1, 0}});
  auto const record = *record_layout::make(layout, 12);
  std::vector<std::byte> const block(static_cast<std::size_t>(record.bytes()));
  record_view const view{&record, block.data()};
  copies_of<batch_plan> batches(batch);
  CHECK(fail_each_allocation([&] { return assembler::make(layout, batches.take(), {&view, 1}, 1); }) > 10);
  double const costs[] = {1.0, 2.0};
  CHECK(fail_each_allocation([&] { return schedule_longest_first(costs, 2); }) > 2);
}
