// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hypic/request/batch_plan.hpp"
#include "hypic/request/request_plan.hpp"
#include "hypic/request/schedule.hpp"

using namespace hypic;

namespace {

model_layout attention_only(std::int64_t max_positions = 0) {
  model_layout layout;
  layout.layers.emplace_back(
      attention_layer{.query_heads = 2, .kv_heads = 1, .key_dim = 4, .value_dim = 4, .rotary = {}});
  layout.head_rows = 8;
  layout.max_positions = max_positions;
  return layout;
}

record_key key_of(unsigned char name) {
  record_key key;
  key.bytes[0] = std::byte{name};
  return key;
}

prompt_span span_of(span_kind kind, std::int32_t first, int count, unsigned char name = 0) {
  prompt_span span{kind, std::vector<std::int32_t>(static_cast<std::size_t>(count)), key_of(name)};
  std::iota(span.tokens.begin(), span.tokens.end(), first);
  return span;
}

prompt_span cached(std::int32_t first, int count, unsigned char name) {
  return span_of(span_kind::cached, first, count, name);
}
prompt_span fresh(std::int32_t first, int count) { return span_of(span_kind::fresh, first, count); }

/// Cached 12, fresh 3, cached 5 (under the seam), an empty cached one, cached 20, fresh 2.
std::vector<prompt_span> mixed_prompt() {
  return {cached(100, 12, 1), fresh(200, 3), cached(300, 5, 2), cached(0, 0, 3), cached(400, 20, 4), fresh(500, 2)};
}

}  // namespace

TEST_CASE("A plan forwards the seams of preceded cached spans and all of the fresh ones, at true positions") {
  auto const plan = plan_request(attention_only(), mixed_prompt(), {.seam_rows = 8});
  REQUIRE(plan);
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> rows;
  for (auto const& span : plan->spans) {
    starts.push_back(span.start);
    rows.push_back(span.rows);
    CHECK(span.turn == span.start);
  }
  CHECK(starts == std::vector<std::int64_t>{0, 12, 15, 20, 20, 40});
  CHECK(rows == std::vector<std::int64_t>{0, 3, 5, 0, 8, 2});
  CHECK(plan->prompt_tokens == 42);
  CHECK(plan->row_tokens == std::vector<std::int32_t>{200, 201, 202, 300, 301, 302, 303, 304, 400, 401, 402, 403, 404,
                                                      405, 406, 407, 500, 501});
  CHECK(plan->row_positions ==
        std::vector<std::int64_t>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 40, 41});
}

TEST_CASE("A span is reused where its record serves at least one token, and forwarded where its seam is all of it") {
  auto const plan = plan_request(attention_only(), mixed_prompt(), {.seam_rows = 8});
  REQUIRE(plan);
  std::vector<span_decision> decisions;
  for (auto const& span : plan->spans) decisions.push_back(span.decision);
  using enum span_decision;
  CHECK(decisions == std::vector{reuse, forward, forward, forward, reuse, forward});
  CHECK(plan->spans[0].key == key_of(1));
  CHECK(plan->spans[2].key == record_key{});
}

TEST_CASE("Each decision has its reason and its value in forwarded tokens") {
  auto const plan = plan_request(attention_only(), mixed_prompt(), {.seam_rows = 8});
  REQUIRE(plan);
  std::vector<span_reason> reasons;
  std::vector<double> saved;
  for (auto const& span : plan->spans) {
    reasons.push_back(span.reason);
    saved.push_back(span.saved);
  }
  using enum span_reason;
  CHECK(reasons == std::vector{nothing_precedes, fresh, within_seam, empty, seam_forwarded, fresh});
  CHECK(saved == std::vector<double>{12, 0, 0, 0, 12, 0});
  for (int reason = 0; reason <= static_cast<int>(seam_forwarded); ++reason)
    CHECK(to_string(static_cast<span_reason>(reason)) != std::string("unknown"));
}

TEST_CASE("A span that costs as much to reuse as to forward is forwarded, and a dearer one sooner") {
  auto const decided = [](reuse_costs const& costs) {
    auto const plan = plan_request(attention_only(), std::vector{cached(100, 12, 1), cached(200, 20, 2)},
                                   {.seam_rows = 8, .costs = costs});
    REQUIRE(plan);
    return std::pair{plan->spans[0].reason, plan->spans[1].reason};
  };
  using enum span_reason;
  CHECK(decided({}) == std::pair{nothing_precedes, seam_forwarded});
  CHECK(decided({.span = 11.5}) == std::pair{nothing_precedes, seam_forwarded});
  CHECK(decided({.span = 12.0}) == std::pair{costs_more, costs_more});
  CHECK(decided({.token = 0.75}) == std::pair{nothing_precedes, costs_more});
  CHECK(decided({.span = 100.0, .token = -10.0}) == std::pair{nothing_precedes, seam_forwarded});
  CHECK(plan_request(attention_only(), mixed_prompt(), {.costs = {.span = std::nan("")}}).error() ==
        status::invalid_argument);
}

TEST_CASE("Tokens that precede a plan move its positions and give its first cached span a seam") {
  std::vector const spans{cached(100, 12, 1)};
  auto const plan = plan_request(attention_only(), spans, {.seam_rows = 4, .preceding_tokens = 30});
  REQUIRE(plan);
  CHECK(plan->spans[0].start == 30);
  CHECK(plan->row_positions == std::vector<std::int64_t>{30, 31, 32, 33});
  CHECK(plan->prompt_tokens == 42);
}

TEST_CASE("A plan that cannot be served is refused by name, with what was found and what was expected") {
  auto const refusal = [](std::vector<prompt_span> const& spans, request_options const& options,
                          std::int64_t max_positions = 0) {
    auto const plan = plan_request(attention_only(max_positions), spans, options);
    REQUIRE_FALSE(plan);
    return plan.error();
  };
  CHECK(refusal({}, {}) == status::invalid_argument);
  CHECK(refusal({cached(0, 0, 1), fresh(0, 0)}, {}) == status::invalid_argument);
  CHECK(refusal(mixed_prompt(), {.seam_rows = -1}) == status::invalid_argument);
  CHECK(refusal(mixed_prompt(), {.generated_tokens = -1}) == status::invalid_argument);
  CHECK(refusal(mixed_prompt(), {.preceding_tokens = -1}) == status::invalid_argument);
  auto const seam = refusal(mixed_prompt(), {.seam_rows = 9});
  CHECK(seam == status::invalid_argument);
  CHECK((seam.found() == 9 && seam.expected() == 8));
  auto const length = refusal(mixed_prompt(), {.generated_tokens = 9}, 50);
  CHECK(length == status::capacity_exceeded);
  CHECK((length.found() == 51 && length.expected() == 50));
  CHECK(plan_request(attention_only(50), mixed_prompt(), {.generated_tokens = 8}));
}

TEST_CASE("Slices of a plan, one after another, are the plan") {
  auto const plan = *plan_request(attention_only(), mixed_prompt(), {.seam_rows = 8});
  auto const spans = static_cast<std::int64_t>(plan.spans.size());
  for (std::int64_t at = 0; at <= spans; ++at) {
    CAPTURE(at);
    auto const before = *slice(plan, 0, at);
    auto const after = *slice(plan, at, spans - at);
    auto tokens = before.row_tokens;
    tokens.insert(tokens.end(), after.row_tokens.begin(), after.row_tokens.end());
    CHECK(tokens == plan.row_tokens);
    auto positions = before.row_positions;
    positions.insert(positions.end(), after.row_positions.begin(), after.row_positions.end());
    CHECK(positions == plan.row_positions);
    if (at < spans) {
      CHECK(after.spans.front().first_row == 0);
      CHECK(after.prompt_tokens == plan.prompt_tokens);
    }
  }
  CHECK(slice(plan, -1, 1).error() == status::out_of_range);
  CHECK(slice(plan, spans + 1, 0).error() == status::out_of_range);
  CHECK(slice(plan, 1, spans).error() == status::out_of_range);
}

TEST_CASE("A batch packs rows in order and names each record once") {
  auto const layout = attention_only();
  std::vector const first{cached(100, 12, 1), cached(400, 20, 4), cached(100, 12, 1), fresh(500, 2)};
  std::vector const second{fresh(200, 3), cached(400, 20, 4)};
  auto const batch =
      plan_batch({{*plan_request(layout, first, {}), -1, 0}, {*plan_request(layout, second, {}), -1, 1}});
  REQUIRE(batch);
  CHECK(batch->records == std::vector{key_of(1), key_of(4)});
  CHECK(batch->record_of == std::vector<std::int32_t>{0, 1, 0, -1, -1, 1});
  CHECK(batch->first_row == std::vector<std::int64_t>{0, 18, 29});
  CHECK(batch->rows() == 29);
  std::int64_t row = 0;
  for (auto const& run : batch->runs) {
    CHECK(run.first_row == row);
    row += run.rows;
  }
}

TEST_CASE("Token counts at the ends of 64 bits are refused in words, and add up to no other number") {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  std::vector const spans{fresh(0, 3)};
  auto const refused = [&](std::int64_t max_positions, request_options const& options) {
    auto const plan = plan_request(attention_only(max_positions), spans, options);
    CHECK(plan.error() == status::capacity_exceeded);
    return message(plan.error());
  };
  CHECK(refused(100, {.generated_tokens = most}) ==
        "capacity_exceeded: prompt plus generated tokens is 9223372036854775807, expected at most 100");
  CHECK(refused(0, {.generated_tokens = most}).starts_with("capacity_exceeded: prompt plus generated tokens"));
  CHECK(refused(0, {.preceding_tokens = most - 2}) == "capacity_exceeded: span tokens is 3, expected at most 2");
  CHECK(plan_request(attention_only(), spans, {.preceding_tokens = most - 3}));
}

TEST_CASE("A batch refuses slots that are no slots and a final slot that two requests claim") {
  auto const plan = *plan_request(attention_only(), mixed_prompt(), {});
  CHECK(plan_batch({{plan, -2, 0}}).error() == status::out_of_range);
  CHECK(plan_batch({{plan, -1, -2}}).error() == status::out_of_range);
  CHECK(plan_batch({{plan, -1, 3}, {plan, -1, 3}}).error() == status::out_of_range);
  CHECK(plan_batch({{plan, -1, -1}, {plan, -1, -1}}));
}

TEST_CASE("Longest first gives every job once, longest first, within the bound of a list schedule") {
  std::mt19937_64 random(17);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<double> cost(random() % 40);
    for (auto& c : cost) c = static_cast<double>(random() % 1000);
    auto const workers = static_cast<std::int32_t>(1 + random() % 6);
    auto const assigned = schedule_longest_first(cost, workers);
    REQUIRE(assigned);
    std::vector<int> seen(cost.size());
    double makespan = 0.0;
    for (auto const& jobs : *assigned) {
      double load = 0.0;
      for (auto const job : jobs) {
        ++seen[static_cast<std::size_t>(job)];
        load += cost[static_cast<std::size_t>(job)];
      }
      makespan = std::max(makespan, load);
      CHECK(std::is_sorted(jobs.begin(), jobs.end(), [&](std::int64_t left, std::int64_t right) {
        return cost[static_cast<std::size_t>(left)] > cost[static_cast<std::size_t>(right)];
      }));
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
    // A list schedule ends within the mean load and the last job's length.
    double const total = std::accumulate(cost.begin(), cost.end(), 0.0);
    double const longest = cost.empty() ? 0.0 : *std::max_element(cost.begin(), cost.end());
    CHECK(makespan <= total / workers + longest * (1.0 - 1.0 / workers) + 1e-9);
  }
  CHECK(*schedule_longest_first(std::vector{5.0, 3.0, 3.0, 3.0}, 2) ==
        std::vector<std::vector<std::int64_t>>{{0, 3}, {1, 2}});
}

TEST_CASE("A schedule without workers or with a negative or undefined cost is refused") {
  CHECK(schedule_longest_first(std::vector{1.0}, 0).error() == status::invalid_argument);
  CHECK(schedule_longest_first(std::vector{1.0, -1.0}, 1).error() == status::invalid_argument);
  CHECK(schedule_longest_first(std::vector{std::nan("")}, 1).error() == status::invalid_argument);
}
