// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/seam_attention.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/attention_oracle.hpp"
#include "support/attention_request.hpp"
#include "support/layer_data.hpp"
#include "support/random_tensor.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

attention_plan heads(std::int32_t query_heads, std::int32_t kv_heads, std::int32_t key_dim, std::int32_t value_dim) {
  attention_plan plan;
  plan.query_heads = query_heads;
  plan.kv_heads = kv_heads;
  plan.key_dim = key_dim;
  plan.value_dim = value_dim;
  plan.scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  return plan;
}

struct result_bits {
  std::vector<float> o, lse;
  friend bool operator==(result_bits const& left, result_bits const& right) {
    return same_bits(left.o, right.o) && same_bits(left.lse, right.lse);
  }
};

// A batch with its memory. Request i has the same contents in whatever batch it stands at index i.
struct batch {
  attention_plan plan;
  tensor<3> q;
  positions at;
  std::vector<tensor<3>> keys, values;
  std::vector<float> sinks;
  tensor<3> o;
  tensor<2> lse;

  batch(attention_plan of, std::vector<request> const& requests, float deviation = 1.0f, layout how = layout::dense)
      : plan(std::move(of)) {
    for (auto const& one : requests) {
      auto const rows = static_cast<std::int64_t>(one.rows.size());
      plan.sequences.push_back({plan.total_rows, rows, one.keys});
      plan.total_rows += rows;
      at.insert(at.end(), one.rows.begin(), one.rows.end());
      auto const seed = 2 * keys.size() + 10;
      keys.push_back(random_tensor<3>({one.keys, plan.kv_heads, plan.key_dim}, seed, deviation, how));
      values.push_back(random_tensor<3>({one.keys, plan.kv_heads, plan.value_dim}, seed + 1, 1.0f, how));
    }
    q = random_tensor<3>({plan.total_rows, plan.query_heads, plan.key_dim}, 1, deviation, how);
    o = tensor<3>({plan.total_rows, plan.query_heads, plan.value_dim}, how);
    lse = tensor<2>({plan.total_rows, plan.query_heads}, how);
  }

  std::vector<key_value_view> caches() const {
    std::vector<key_value_view> views;
    for (std::size_t i = 0; i < keys.size(); ++i) views.push_back({keys[i].view(), values[i].view()});
    return views;
  }

  status attend(host_exec const& ex) {
    return seam_attention(plan, q.view(), at, caches(), sinks, o.view(), lse.view(), ex);
  }

  // Runs on poisoned scratch of the exact size.
  result_bits run(int threads = 1, std::size_t misalignment = 1) {
    o.fill(quiet_nan);
    lse.fill(quiet_nan);
    lent_scratch lent(plan.workspace_bytes(threads), misalignment);
    REQUIRE(attend({.workspace = lent.span(), .threads = threads}) == status::ok);
    CHECK(lent.guards_intact());
    CHECK(o.gaps_intact());
    CHECK(lse.gaps_intact());
    return {o.packed(), lse.packed()};
  }

  // The same rows in fp64.
  std::pair<std::vector<double>, std::vector<double>> exact() const {
    std::vector<double> out, logs;
    for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
      for (std::int64_t r = 0; r < plan.sequences[s].rows; ++r) {
        auto const row = plan.sequences[s].first_row + r;
        for (std::int64_t h = 0; h < plan.query_heads; ++h) {
          auto const kv_head = h * plan.kv_heads / plan.query_heads;
          oracle::attention_rule rule{static_cast<double>(plan.scale), static_cast<double>(plan.soft_cap),
                                      to_index(plan.window)};
          if (!sinks.empty()) rule.sink = static_cast<double>(sinks[to_index(h)]);
          auto const one = oracle::attend(
              rule, q.view()[row][h].data, to_index(plan.key_dim), to_index(plan.value_dim),
              to_index(at[to_index(row)]), [&](std::size_t j) { return &keys[s].view()(j, kv_head, 0); },
              [&](std::size_t j) { return &values[s].view()(j, kv_head, 0); });
          out.insert(out.end(), one.o.begin(), one.o.end());
          logs.push_back(one.lse);
        }
      }
    }
    return {out, logs};
  }

  void check_exact() {
    auto const [out, logs] = exact();
    auto const found = run();
    CHECK(relative_error(found.o, out) <= 2e-6);
    for (std::size_t i = 0; i < logs.size(); ++i) {
      CHECK(static_cast<double>(found.lse[i]) == Approx(logs[i]).epsilon(1e-6).margin(1e-6));
    }
  }
};

// What request `index` of a batch got.
result_bits part(batch const& whole, std::size_t index) {
  auto const& one = whole.plan.sequences[index];
  return {gather(whole.o.view().rows(one.first_row, one.rows)), gather(whole.lse.view().rows(one.first_row, one.rows))};
}

// Seams and fresh rows of two cached spans, in prompt order.
request assembled() {
  auto rows = consecutive(0, 5);
  for (auto const p : consecutive(90, 8)) rows.push_back(p);
  for (auto const p : consecutive(190, 40)) rows.push_back(p);
  return {rows, 230};
}

}  // namespace

TEST_CASE("seam_attention equals fp64 softmax attention to 2e-6 for all shapes of heads", "[seam_attention]") {
  std::vector<attention_plan> const shapes = {heads(1, 1, 16, 16),  heads(3, 3, 64, 64), heads(4, 2, 64, 24),
                                              heads(6, 2, 20, 9),   heads(8, 1, 7, 5),   heads(2, 1, 1, 1),
                                              heads(2, 2, 128, 128)};
  for (auto const& shape : shapes) {
    for (auto const how : {layout::dense, layout::gaps}) {
      CAPTURE(shape.query_heads, shape.kv_heads, shape.key_dim, shape.value_dim, static_cast<int>(how));
      batch(shape, {assembled(), {{0}, 1}, {{64, 63, 65, 127, 128}, 140}, {{}, 0}, {{}, 12}}, 1.0f, how).check_exact();
    }
  }
}

TEST_CASE("seam_attention equals fp64 at every position of a prompt", "[seam_attention]") {
  batch(heads(2, 1, 16, 8), {{consecutive(0, 200), 200}}).check_exact();
}

TEST_CASE("scores of size 25 over 32k keys keep 2e-6", "[seam_attention]") {
  for (std::int32_t const dim : {64, 128}) {
    CAPTURE(dim);
    batch one(heads(1, 1, dim, dim), {{{32'767, 32'000, 64}, 32'768}});
    auto const scale_q = [&](float factor) {
      for_each_element(one.q.view(), [&](float& x, std::int64_t) { x *= factor; });
    };
    scale_q(6.0f);  // scores of deviation 6: up to 25
    one.check_exact();
    scale_q(4.0f);  // of deviation 24
    one.check_exact();

    // 25 in common, and 1 of difference: nothing may be lost to the common part.
    scale_q(1.0f / 24.0f);
    float const common = std::sqrt(25.0f / std::sqrt(static_cast<float>(dim)));
    for_each_element(one.q.view(), [&](float& x, std::int64_t) { x += common; });
    for_each_element(one.keys[0].view(), [&](float& x, std::int64_t) { x += common; });
    one.check_exact();
  }
}

TEST_CASE("a window shows a query its own key and those just before it", "[seam_attention]") {
  for (std::int64_t const window : {1, 2, 63, 64, 65, 128, 229, 230, 1000}) {
    CAPTURE(window);
    auto plan = heads(4, 2, 16, 8);
    plan.window = window;
    batch(plan, {assembled(), {{64, 63, 65, 127, 128}, 140}}).check_exact();
  }
  auto plan = heads(1, 1, 16, 8);
  plan.window = 1;
  batch own(plan, {{{70, 3}, 90}});
  own.run();
  CHECK(same_bits(gather(own.o.view().rows(0, 1)), gather(own.values[0].view().rows(70, 1))));
  CHECK(same_bits(gather(own.o.view().rows(1, 1)), gather(own.values[0].view().rows(3, 1))));

  plan.window = std::numeric_limits<std::int64_t>::max();
  batch wide(plan, {assembled()});
  auto const all = wide.run();
  wide.plan.window = 0;
  CHECK(wide.run() == all);
}

TEST_CASE("a soft cap bounds scores by its hyperbolic tangent", "[seam_attention]") {
  for (float const soft_cap : {0.5f, 30.0f, 50.0f}) {
    CAPTURE(soft_cap);
    auto plan = heads(4, 2, 16, 8);
    plan.soft_cap = soft_cap;
    batch(plan, {assembled()}).check_exact();
    batch(plan, {assembled()}, 5.0f).check_exact();
    plan.window = 70;
    batch(plan, {assembled()}, 5.0f).check_exact();
  }
}

TEST_CASE("a sink takes its share of every row", "[seam_attention]") {
  auto plan = heads(4, 2, 16, 8);
  for (std::int64_t const window : {0, 5}) {
    plan.window = window;
    batch with(plan, {assembled(), {{0}, 1}});
    with.sinks = {0.0f, -3.0f, 5.0f, 12.0f};
    with.check_exact();
  }
}

TEST_CASE("a sink far below the scores changes no bit, and one far above them takes all", "[seam_attention]") {
  batch one(heads(2, 1, 16, 8), {assembled()});
  auto const without = one.run();
  float const lowest = std::numeric_limits<float>::lowest();
  one.sinks = {-infinity, lowest};
  CHECK(one.run() == without);

  one.sinks = {1e4f, 1e30f};
  auto const all = one.run();
  CHECK(all.o == std::vector<float>(all.o.size(), 0.0f));
  for (std::size_t i = 0; i < all.lse.size(); ++i) CHECK(all.lse[i] == one.sinks[i % 2]);
}

TEST_CASE("extreme scores give the value of the largest one", "[seam_attention]") {
  auto const value_of = [](batch const& from, std::int64_t key) { return gather(from.values[0].view().rows(key, 1)); };
  auto plan = heads(1, 1, 1, 8);
  for (float const step : {100.0f, -100.0f, 1e4f, -1e4f, 1e30f}) {
    CAPTURE(step);
    batch one(plan, {{{199, 63}, 200}});
    one.q.fill(1.0f);
    for_each_element(one.keys[0].view(), [&](float& x, std::int64_t j) { x = step * static_cast<float>(j); });
    one.run();
    CHECK(same_bits(gather(one.o.view().rows(0, 1)), value_of(one, step > 0.0f ? 199 : 0)));
    CHECK(same_bits(gather(one.o.view().rows(1, 1)), value_of(one, step > 0.0f ? 63 : 0)));
    CHECK(one.lse.view()(0, 0) == (step > 0.0f ? step * 199.0f : 0.0f));
  }
  batch flat(plan, {{{199}, 200}});
  flat.keys[0].fill(-1e9f);
  flat.check_exact();
}

TEST_CASE("keys and values that a row does not see do not touch it, whatever they hold", "[seam_attention]") {
  auto plan = heads(2, 1, 16, 8);
  plan.window = 50;
  batch one(plan, {{{120, 100}, 200}});
  auto const clean = one.run();
  for (std::int64_t j = 0; j < 200; ++j) {
    if (j >= 51 && j <= 120) continue;  // seen by one of them
    for_each_element(one.keys[0].view().rows(j, 1), [](float& x, std::int64_t) { x = quiet_nan; });
    for_each_element(one.values[0].view().rows(j, 1), [](float& x, std::int64_t) { x = infinity; });
  }
  CHECK(one.run() == clean);
}

TEST_CASE("a row's bits depend neither on the rows beside it nor on later keys", "[seam_attention]") {
  batch whole(heads(3, 1, 20, 12), {{consecutive(0, 150), 150}});
  auto const all = whole.run();
  for (std::int64_t const row : {0, 1, 63, 64, 100, 149}) {
    CAPTURE(row);
    batch alone(heads(3, 1, 20, 12), {{{row}, row + 1}});
    for_each_element(alone.q.view(), [&](float& x, std::int64_t i) { x = whole.q.view()(row, i / 20, i % 20); });
    alone.keys[0] = whole.keys[0];
    alone.values[0] = whole.values[0];
    auto const one = alone.run();
    CHECK(same_bits(one.o, gather(whole.o.view().rows(row, 1))));
    CHECK(same_bits(one.lse, gather(whole.lse.view().rows(row, 1))));
  }
}

TEST_CASE("the first request has the same bits alone and in batches of 2, 7 and 64", "[seam_attention]") {
  auto const plan = heads(4, 2, 20, 12);
  auto const alone = batch(plan, {assembled()}).run();
  for (std::int64_t const size : {2, 7, 64}) {
    CAPTURE(size);
    std::vector<request> requests = {assembled()};
    for (std::int64_t i = 1; i < size; ++i) requests.push_back({consecutive(i, i % 40), 2 * i + 40});
    batch many(plan, requests);
    many.run(2);
    CHECK(part(many, 0) == alone);
  }
}

TEST_CASE("the number of threads and the alignment of the scratch change no bit", "[seam_attention]") {
  batch one(heads(4, 2, 20, 12), {assembled(), {consecutive(3, 100), 120}, {{}, 0}, {{7}, 8}});
  auto const alone = one.run(1, 0);
  for (int const threads : {1, 2, 5}) {
    for (std::size_t const misalignment : {0u, 1u, 4u, 63u}) CHECK(one.run(threads, misalignment) == alone);
  }
}

TEST_CASE("grouped query heads equal heads that have the same keys of their own", "[seam_attention]") {
  batch grouped(heads(6, 2, 16, 8), {assembled()});
  batch repeated(heads(6, 6, 16, 8), {assembled()});
  auto const copy_heads = [](tensor<3> const& from, tensor<3>& to) {
    for (std::int64_t j = 0; j < from.view().extent[0]; ++j) {
      for (std::int64_t h = 0; h < 6; ++h) {
        for (std::int64_t d = 0; d < from.view().extent[2]; ++d) to.view()(j, h, d) = from.view()(j, h / 3, d);
      }
    }
  };
  copy_heads(grouped.keys[0], repeated.keys[0]);
  copy_heads(grouped.values[0], repeated.values[0]);
  CHECK(grouped.run() == repeated.run());
}

TEST_CASE("the log-sum-exp is optional", "[seam_attention]") {
  batch one(heads(2, 1, 16, 8), {assembled()});
  auto const with = one.run();
  lent_scratch lent(one.plan.workspace_bytes(1));
  one.o.fill(quiet_nan);
  REQUIRE(seam_attention(one.plan, one.q.view(), one.at, one.caches(), {}, one.o.view(), {},
                         {.workspace = lent.span()}) == status::ok);
  CHECK(same_bits(one.o.packed(), with.o));
}

TEST_CASE("no requests, no rows and no keys are fine", "[seam_attention]") {
  batch(heads(2, 1, 16, 8), {}).run(2);
  batch(heads(2, 1, 16, 8), {{{}, 0}, {{}, 5}}).run(2);
  auto plan = heads(2, 1, 16, 8);
  plan.sequences = {{0, 0, 0}};
  lent_scratch lent(plan.workspace_bytes(1));
  std::vector<key_value_view> const none(1);
  CHECK(seam_attention(plan, {}, {}, none, {}, {}, {}, {.workspace = lent.span()}) == status::ok);
}

TEST_CASE("a plan's faults are named", "[seam_attention]") {
  auto const fault = [](status::code code, auto change) -> std::string {
    auto plan = batch(heads(4, 2, 16, 8), {{{0, 1}, 5}}).plan;
    REQUIRE(validate(plan) == status::ok);
    change(plan);
    auto const outcome = validate(plan);
    CHECK(outcome == code);
    return outcome.argument();
  };
  auto const shape = status::invalid_shape;
  auto const argument = status::invalid_argument;
  CHECK(fault(shape, [](auto& plan) { plan.query_heads = 0; }) == "query_heads");
  CHECK(fault(shape, [](auto& plan) { plan.query_heads = 5; }) == "query_heads");
  CHECK(fault(shape, [](auto& plan) { plan.kv_heads = 0; }) == "kv_heads");
  CHECK(fault(shape, [](auto& plan) { plan.key_dim = 0; }) == "key_dim");
  CHECK(fault(shape, [](auto& plan) { plan.value_dim = -1; }) == "value_dim");
  CHECK(fault(shape, [](auto& plan) { plan.total_rows = -1; }) == "total_rows");
  CHECK(fault(shape, [](auto& plan) { plan.total_rows = 1; }) == "sequences.rows");
  CHECK(fault(shape, [](auto& plan) { plan.sequences[0].first_row = -1; }) == "sequences.first_row");
  CHECK(fault(shape, [](auto& plan) { plan.sequences[0].first_row = 3; }) == "sequences.first_row");
  CHECK(fault(shape, [](auto& plan) { plan.sequences[0].rows = -1; }) == "sequences.rows");
  CHECK(fault(shape, [](auto& plan) { plan.sequences[0].keys = -1; }) == "sequences.keys");
  CHECK(fault(shape, [](auto& plan) { plan.sequences.push_back(plan.sequences[0]); }) ==
        "sequences: two that share a row");
  CHECK(fault(argument, [](auto& plan) { plan.scale = infinity; }) == "scale");
  CHECK(fault(argument, [](auto& plan) { plan.soft_cap = quiet_nan; }) == "soft_cap");
  CHECK(fault(argument, [](auto& plan) { plan.soft_cap = -1.0f; }) == "soft_cap");
  CHECK(fault(argument, [](auto& plan) { plan.window = -1; }) == "window");
}

TEST_CASE("misused arguments are refused by name and nothing is written", "[seam_attention]") {
  auto const fault = [](status::code code, auto change) -> std::string {
    batch one(heads(4, 2, 16, 8), {{{0, 1}, 5}, {{2}, 3}});
    change(one);
    lent_scratch lent(one.plan.workspace_bytes(1));
    auto const outcome = one.attend({.workspace = lent.span()});
    CHECK(outcome == code);
    auto const written = one.o.packed();
    CHECK_FALSE(std::any_of(written.begin(), written.end(), [](float x) { return std::isfinite(x); }));
    return outcome.argument();
  };
  auto const shape = status::invalid_shape;
  auto const range = status::out_of_range;
  CHECK(fault(shape, [](batch& one) { one.plan.key_dim = 15; }) == "q");
  CHECK(fault(shape, [](batch& one) { one.q = tensor<3>({3, 4, 16}, layout::transposed); }) == "q");
  CHECK(fault(shape, [](batch& one) { one.at.pop_back(); }) == "positions");
  CHECK(fault(shape, [](batch& one) { one.keys.pop_back(); }) == "caches");
  CHECK(fault(shape, [](batch& one) { one.sinks = {1.0f}; }) == "sink_logits");
  CHECK(fault(shape, [](batch& one) { one.o = tensor<3>({3, 4, 9}); }) == "o");
  CHECK(fault(shape, [](batch& one) { one.lse = tensor<2>({3, 2}); }) == "lse");
  CHECK(fault(shape, [](batch& one) { one.plan.sequences[1].keys = 4; }) == "caches.keys");
  CHECK(fault(shape, [](batch& one) { one.keys[1] = tensor<3>({3, 2, 17}); }) == "caches.keys");
  CHECK(fault(shape, [](batch& one) { one.values[1] = tensor<3>({2, 2, 8}); }) == "caches.values");
  CHECK(fault(shape, [](batch& one) { one.values[0] = tensor<3>({5, 1, 8}); }) == "caches.values");
  CHECK(fault(range, [](batch& one) { one.at[1] = -1; }) == "positions");
  CHECK(fault(range, [](batch& one) { one.at[2] = 3; }) == "positions");
  CHECK(fault(shape, [](batch& one) { one.plan.query_heads = 3; }) == "query_heads");

  batch alike(heads(2, 2, 8, 8), {{{0, 1}, 2}});
  lent_scratch lent(alike.plan.workspace_bytes(1));
  for (auto* input : {&alike.q, &alike.keys[0], &alike.values[0]}) {
    auto const before = input->packed();
    auto const outcome = seam_attention(alike.plan, alike.q.view(), alike.at, alike.caches(), {}, input->view(), {},
                                        {.workspace = lent.span()});
    CHECK(outcome == status::invalid_shape);
    CHECK(same_bits(input->packed(), before));
  }

  batch one(heads(4, 2, 16, 8), {{{0, 1}, 5}});
  lent_scratch short_of_one(one.plan.workspace_bytes(2) - 1);
  auto const outcome = one.attend({.workspace = short_of_one.span(), .threads = 2});
  CHECK(outcome == status::workspace_too_small);
  CHECK(outcome.argument() == std::string("ex.workspace"));
  CHECK(outcome.expected() == outcome.found() + 1);
  CHECK(one.attend({.workspace = short_of_one.span(), .threads = 0}) == status::invalid_argument);
}

TEST_CASE("a block is a fixed number of keys", "[seam_attention]") { CHECK(attention_block() == 64); }
