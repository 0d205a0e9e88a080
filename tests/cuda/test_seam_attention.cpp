// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/seam_attention.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/half_types.hpp"
#include "support/attention_oracle.hpp"
#include "support/attention_request.hpp"
#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

// Eight rows every 37 positions, as seams of short spans are, and the prompt's last five.
request seams(std::int64_t keys) {
  positions rows;
  for (std::int64_t p = 0; p + 13 <= keys; p += 37) {
    for (std::int64_t i = 0; i < 8; ++i) rows.push_back(p + i);
  }
  for (auto const p : consecutive(keys - 5, 5)) rows.push_back(p);
  return {rows, keys};
}

// Rows on both sides of the splits' borders.
request at_borders() {
  auto const split = attention_split();
  positions rows = {0, 5, 63, 64, split - 2, split - 1, split, split + 1, 2 * split - 1, 2 * split, 2 * split + 300};
  return {rows, 2 * split + 310};
}

std::vector<request> mixed() { return {seams(400), {{0}, 1}, at_borders(), {{}, 0}, {{}, 12}, {{64, 63, 127}, 140}}; }

device_attention_plan heads(dtype type, std::int32_t query_heads, std::int32_t kv_heads, std::int32_t key_dim,
                            std::int32_t value_dim) {
  device_attention_plan plan;
  plan.type = type;
  plan.query_heads = query_heads;
  plan.kv_heads = kv_heads;
  plan.key_dim = key_dim;
  plan.value_dim = value_dim;
  plan.scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  return with_dense_strides(plan);
}

constexpr dtype types[] = {dtype::f32, dtype::f16, dtype::bf16};
double bound(dtype type) { return type == dtype::f32 ? 2e-6 : 5e-3; }

std::vector<float> normal(dtype type, std::int64_t count, std::uint64_t seed, float deviation) {
  std::mt19937_64 source(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<float> values(to_index(count));
  for (float& x : values) x = rounded(type, distribution(source));
  return values;
}

// What a batch holds, as floats that its type has. Request i has the same contents in whatever batch it stands at index i.
struct batch {
  device_attention_plan plan;
  std::vector<request> requests;
  positions at;
  std::vector<float> q;                          // [total_rows, query_heads, key_dim]
  std::vector<std::vector<float>> keys, values;  // [keys, kv_heads, dim]
  std::vector<float> sinks;

  batch(device_attention_plan const& of, std::vector<request> parts, float deviation = 1.0f)
      : plan(of), requests(std::move(parts)) {
    plan.requests = static_cast<std::int64_t>(requests.size());
    for (auto const& one : requests) {
      auto const seed = 3 * keys.size() + 10;
      auto const more = static_cast<std::int64_t>(one.rows.size());
      auto const queries = normal(plan.type, more * plan.query_heads * plan.key_dim, seed, deviation);
      q.insert(q.end(), queries.begin(), queries.end());
      keys.push_back(normal(plan.type, one.keys * plan.kv_heads * plan.key_dim, seed + 1, deviation));
      values.push_back(normal(plan.type, one.keys * plan.kv_heads * plan.value_dim, seed + 2, 1.0f));
      at.insert(at.end(), one.rows.begin(), one.rows.end());
      plan.total_rows += more;
      plan.most_keys = std::max(plan.most_keys, one.keys);
    }
  }

  std::int64_t first_row(std::size_t index) const {
    std::int64_t row = 0;
    for (std::size_t i = 0; i < index; ++i) row += static_cast<std::int64_t>(requests[i].rows.size());
    return row;
  }
  // Fills one key, or one value, of all heads.
  static void fill_row(std::vector<float>& rows, std::int64_t width, std::int64_t row, float with) {
    std::fill_n(rows.begin() + row * width, width, with);
  }
};

// Elements [rows, heads, dim] of a dense array, each row of a head at offset(row, head) elements.
using offset_of = std::function<std::int64_t(std::int64_t, std::int64_t)>;

void scatter(dtype type, std::vector<float> const& from, std::int64_t heads, std::int64_t dim, offset_of const& offset,
             device_bytes const& to) {
  auto const bytes = size_of(type);
  auto const rows = static_cast<std::int64_t>(from.size()) / heads / dim;
  bool const sparse = to.size() > std::size_t{1} << 28;
  std::vector<std::byte> image(sparse ? to_index(dim * bytes) : to.size(), std::byte{0xff});
  if (!sparse) to.read(image.data(), image.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      auto const first = offset(row, head) * bytes;
      auto* const place = image.data() + (sparse ? 0 : first);
      for (std::int64_t d = 0; d < dim; ++d)
        encode(type, from[to_index((row * heads + head) * dim + d)], place + d * bytes);
      if (sparse) to.write(image.data(), image.size(), to_index(first));
    }
  }
  if (!sparse) to.write(image.data(), image.size());
}

struct result_bits {
  std::vector<std::byte> o;
  std::vector<float> lse;
  friend bool operator==(result_bits const& left, result_bits const& right) {
    return left.o == right.o && same_bits(left.lse, right.lse);
  }
};

// A batch in the device's memory. What is no element is NaN. Pages lie shuffled in one pool that all requests share.
class device_batch {
 public:
  explicit device_batch(batch const& of, std::size_t misalignment = 1)
      : plan_(of.plan),
        positions_(of.at),
        q_(bytes_of(of.plan.total_rows * of.plan.q.row)),
        o_(bytes_of(of.plan.total_rows * of.plan.o.row)),
        lse_(to_index(of.plan.total_rows * of.plan.query_heads)),
        sinks_(of.sinks),
        workspace_(to_index(of.plan.workspace_bytes()), misalignment) {
    auto const rows = [](row_strides const& by) {
      return [by](std::int64_t row, std::int64_t head) { return row * by.row + head * by.head; };
    };
    scatter(plan_.type, of.q, plan_.query_heads, plan_.key_dim, rows(plan_.q), q_);
    plan_.page_size > 0 ? place_pages(of) : place_whole(of);
    requests_ = device_array<attention_request>(table_);
    tables = {requests_.data(), positions_.data(), q_.data(), o_.data(), of.sinks.empty() ? nullptr : sinks_.data(),
              lse_.data()};
  }

  status attend(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    return seam_attention(plan_, tables, {stream.get(), workspace_.span(), path});
  }

  result_bits run(kernel_path path = kernel_path::automatic) const {
    poison();
    test_stream const stream;
    REQUIRE(attend(stream, path) == status::ok);
    stream.wait();
    return results();
  }

  void poison() const {
    o_.poison();
    lse_.poison();
    workspace_.poison();
  }

  result_bits results() const {
    std::vector<std::byte> o(o_.size());
    o_.read(o.data(), o.size());
    return {o, lse_.get()};
  }

  // Row by row of `found`, packed.
  std::vector<float> rows_of(result_bits const& found) const {
    std::vector<float> packed;
    for (std::int64_t row = 0; row < plan_.total_rows; ++row) {
      for (std::int64_t head = 0; head < plan_.query_heads; ++head) {
        auto const first = row * plan_.o.row + head * plan_.o.head;
        for (std::int64_t d = 0; d < plan_.value_dim; ++d)
          packed.push_back(decode(plan_.type, found.o.data() + (first + d) * size_of(plan_.type)));
      }
    }
    return packed;
  }

  // Serves another batch of the same plan from the tables that this one's calls name.
  void become(device_batch const& other) const {
    requests_.set(other.table_);
    positions_.set(other.positions_.get());
    std::vector<std::byte> q(other.q_.size());
    other.q_.read(q.data(), q.size());
    q_.write(q.data(), q.size());
  }

  device_attention_tables tables;

 private:
  std::size_t bytes_of(std::int64_t elements) const { return to_index(elements * size_of(plan_.type)); }

  void place_whole(batch const& of) {
    std::int64_t row = 0;
    auto const place = [&](std::vector<float> const& from, std::int64_t count, std::int64_t dim,
                           cache_strides const& by) -> void const* {
      caches_.emplace_back(bytes_of(count * std::max(by.token, by.head * plan_.kv_heads)));
      scatter(
          plan_.type, from, plan_.kv_heads, dim,
          [by](std::int64_t token, std::int64_t head) { return token * by.token + head * by.head; }, caches_.back());
      return caches_.back().data();
    };
    for (std::size_t i = 0; i < of.requests.size(); ++i) {
      auto const rows = static_cast<std::int64_t>(of.requests[i].rows.size());
      auto const keys = of.requests[i].keys;
      table_.push_back({row, rows, keys, place(of.keys[i], keys, plan_.key_dim, plan_.keys),
                        place(of.values[i], keys, plan_.value_dim, plan_.values), nullptr});
      row += rows;
    }
  }

  void place_pages(batch const& of) {
    auto const pages_of = [&](std::int64_t keys) { return (keys + plan_.page_size - 1) / plan_.page_size; };
    std::int64_t pages = 1;
    for (auto const& one : of.requests) pages += pages_of(one.keys);
    std::vector<std::int32_t> order(to_index(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(7));
    caches_.emplace_back(bytes_of(pages * plan_.keys.page));
    caches_.emplace_back(bytes_of(pages * plan_.values.page));

    std::int64_t row = 0;
    auto next = order.begin();
    for (std::size_t i = 0; i < of.requests.size(); ++i) {
      std::vector<std::int32_t> const own(next, next + pages_of(of.requests[i].keys));
      next += pages_of(of.requests[i].keys);
      auto const place = [&](std::vector<float> const& from, std::int64_t dim, cache_strides const& by,
                             device_bytes const& to) {
        auto const size = plan_.page_size;
        scatter(
            plan_.type, from, plan_.kv_heads, dim,
            [&own, by, size](std::int64_t key, std::int64_t head) {
              return own[to_index(key / size)] * by.page + key % size * by.token + head * by.head;
            },
            to);
      };
      place(of.keys[i], plan_.key_dim, plan_.keys, caches_[0]);
      place(of.values[i], plan_.value_dim, plan_.values, caches_[1]);
      pages_.emplace_back(own);
      auto const rows = static_cast<std::int64_t>(of.requests[i].rows.size());
      table_.push_back({row, rows, of.requests[i].keys, caches_[0].data(), caches_[1].data(), pages_.back().data()});
      row += rows;
    }
  }

  device_attention_plan plan_;
  device_array<std::int64_t> positions_;
  device_bytes q_, o_;
  device_array<float> lse_, sinks_;
  device_bytes workspace_;
  std::vector<device_bytes> caches_;
  std::vector<device_array<std::int32_t>> pages_;
  std::vector<attention_request> table_;
  device_array<attention_request> requests_;
};

result_bits run(batch const& of) { return device_batch(of).run(); }

oracle::attended exact(batch const& of, std::size_t index, std::int64_t row, std::int64_t head) {
  auto const& plan = of.plan;
  auto const kv_head = head * plan.kv_heads / plan.query_heads;
  oracle::attention_rule rule{static_cast<double>(plan.scale), static_cast<double>(plan.soft_cap),
                              to_index(plan.window)};
  if (!of.sinks.empty()) rule.sink = static_cast<double>(of.sinks[to_index(head)]);
  auto const part = [&](std::vector<float> const& rows, std::size_t j, std::int64_t dim) {
    return rows.data() + (static_cast<std::int64_t>(j) * plan.kv_heads + kv_head) * dim;
  };
  return oracle::attend(
      rule, of.q.data() + (row * plan.query_heads + head) * plan.key_dim, to_index(plan.key_dim),
      to_index(plan.value_dim), to_index(of.at[to_index(row)]),
      [&](std::size_t j) { return part(of.keys[index], j, plan.key_dim); },
      [&](std::size_t j) { return part(of.values[index], j, plan.value_dim); });
}

double or_infinity(double error) { return std::isfinite(error) ? error : std::numeric_limits<double>::infinity(); }

// Every row of every head against fp64.
void check_exact(batch const& of) {
  device_batch const on_device(of);
  auto const found = on_device.run();
  auto const rows = on_device.rows_of(found);
  auto const dim = of.plan.value_dim;
  double worst = 0.0;
  double worst_log = 0.0;
  for (std::size_t index = 0; index < of.requests.size(); ++index) {
    auto const first = of.first_row(index);
    auto const end = first + static_cast<std::int64_t>(of.requests[index].rows.size());
    for (auto row = first; row < end; ++row) {
      for (std::int64_t head = 0; head < of.plan.query_heads; ++head) {
        auto const place = row * of.plan.query_heads + head;
        auto const wanted = exact(of, index, row, head);
        std::vector<float> const o(rows.begin() + place * dim, rows.begin() + (place + 1) * dim);
        double const error = relative_error(o, wanted.o);
        double const log_error =
            std::abs(static_cast<double>(found.lse[to_index(place)]) - wanted.lse) / (1.0 + std::abs(wanted.lse));
        worst = std::max(worst, or_infinity(error));
        worst_log = std::max(worst_log, or_infinity(log_error));
      }
    }
  }
  CHECK(worst <= bound(of.plan.type));
  CHECK(worst_log <= (of.plan.type == dtype::f32 ? 1e-6 : 1e-4));
}

// What the first request got.
result_bits first_of(batch const& of, result_bits const& all) {
  auto const rows = static_cast<std::int64_t>(of.requests[0].rows.size());
  return {{all.o.begin(), all.o.begin() + rows * of.plan.o.row * size_of(of.plan.type)},
          {all.lse.begin(), all.lse.begin() + rows * of.plan.query_heads}};
}

// Gaps behind all rows of all dimensions.
void set_gaps(device_attention_plan& plan) {
  plan.q.head += 16;
  plan.q.row = plan.query_heads * plan.q.head + 32;
  plan.o.head += 8;
  plan.o.row = plan.query_heads * plan.o.head + 16;
  for (auto* const by : {&plan.keys, &plan.values}) {
    by->head += 8;
    by->token = plan.kv_heads * by->head + 24;
    by->page = plan.page_size * by->token + 40;
  }
}

}  // namespace

TEST_CASE("seam_attention on a device equals fp64 for all shapes of heads", "[cuda][seam_attention]") {
  for (auto const type : types) {
    std::vector<device_attention_plan> const shapes = {
        heads(type, 1, 1, 64, 64),    heads(type, 4, 4, 64, 64),  heads(type, 8, 2, 128, 128),
        heads(type, 16, 2, 256, 256), heads(type, 4, 1, 128, 64), heads(type, 2, 1, 64, 256),
        heads(type, 3, 1, 16, 48),    heads(type, 6, 2, 80, 176), heads(type, 40, 1, 32, 16)};
    for (auto const& shape : shapes) {
      CAPTURE(static_cast<int>(type), shape.query_heads, shape.kv_heads, shape.key_dim, shape.value_dim);
      check_exact(batch(shape, mixed()));
    }
  }
}

TEST_CASE("seam_attention on a device equals fp64 at every position of a prompt", "[cuda][seam_attention]") {
  for (auto const type : types) {
    CAPTURE(static_cast<int>(type));
    check_exact(batch(heads(type, 2, 1, 64, 64), {{consecutive(0, 300), 300}}));
    check_exact(batch(heads(type, 8, 1, 256, 256), {{consecutive(0, 150), 150}}));
  }
}

TEST_CASE("keys in shuffled pages of any size give the bits of keys in one piece", "[cuda][seam_attention]") {
  for (auto const type : types) {
    auto plan = heads(type, 8, 2, 128, 64);
    auto const whole = run(batch(plan, mixed()));
    for (std::int64_t const size : {1, 16, 48, 64, 1000, 5000}) {
      CAPTURE(static_cast<int>(type), size);
      plan.page_size = size;
      CHECK(run(batch(with_dense_strides(plan), mixed())) == whole);
    }
  }
}

TEST_CASE("gaps between rows are neither read nor written", "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (std::int64_t const size : {0, 48}) {
      CAPTURE(static_cast<int>(type), size);
      auto plan = heads(type, 6, 2, 80, 48);
      plan.page_size = size;
      plan = with_dense_strides(plan);
      batch const dense(plan, mixed());
      set_gaps(plan);
      batch const spread(plan, mixed());
      device_batch const on_device(spread);
      auto const found = on_device.run();
      CHECK(same_bits(on_device.rows_of(found), device_batch(dense).rows_of(run(dense))));

      std::size_t written = 0;
      auto const untouched = std::count(found.o.begin(), found.o.end(), std::byte{0xff});
      for (auto const& one : spread.requests) written += one.rows.size() * to_index(6 * 48 * size_of(type));
      CHECK(to_index(untouched) >= found.o.size() - written);
    }
  }
}

TEST_CASE("on a device scores of size 25 over 32k keys keep 2e-6", "[cuda][seam_attention]") {
  for (std::int32_t const dim : {64, 256}) {
    CAPTURE(dim);
    batch one(heads(dtype::f32, 1, 1, dim, dim), {{{64, 32'000, 32'767}, 32'768}});
    auto const scale_q = [&](float factor) {
      for (float& x : one.q) x *= factor;
    };
    scale_q(6.0f);  // scores of deviation 6: up to 25
    check_exact(one);

    // 25 in common, and 1 of difference: nothing may be lost to the common part.
    scale_q(1.0f / 6.0f);
    float const common = std::sqrt(25.0f / std::sqrt(static_cast<float>(dim)));
    for (float& x : one.q) x += common;
    for (float& x : one.keys[0]) x += common;
    check_exact(one);
  }
}

TEST_CASE("on a device a window shows a query its own key and those just before it", "[cuda][seam_attention]") {
  for (auto const type : types) {
    auto plan = heads(type, 4, 2, 64, 64);
    for (std::int64_t const window : {1, 2, 63, 64, 65, 128, 1023, 1024, 1025, 2000, 100'000}) {
      CAPTURE(static_cast<int>(type), window);
      plan.window = window;
      check_exact(batch(plan, mixed()));
    }
    plan.window = std::numeric_limits<std::int64_t>::max();
    auto const wide = run(batch(plan, mixed()));
    plan.window = 0;
    CHECK(run(batch(plan, mixed())) == wide);
  }
}

TEST_CASE("on a device a soft cap bounds scores by its hyperbolic tangent", "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (float const soft_cap : {0.5f, 30.0f, 50.0f}) {
      CAPTURE(static_cast<int>(type), soft_cap);
      auto plan = heads(type, 4, 2, 64, 64);
      plan.soft_cap = soft_cap;
      check_exact(batch(plan, mixed()));
      plan.window = 70;
      check_exact(batch(plan, mixed(), 2.0f));
    }
  }
}

TEST_CASE("on a device a sink takes its share of every row", "[cuda][seam_attention]") {
  for (auto const type : types) {
    CAPTURE(static_cast<int>(type));
    batch one(heads(type, 4, 2, 64, 64), mixed());
    auto const without = run(one);
    one.sinks = {-infinity, std::numeric_limits<float>::lowest(), -infinity, -1e30f};
    CHECK(run(one) == without);
    one.sinks = {0.0f, -3.0f, 5.0f, type == dtype::f16 ? 7.0f : 12.0f};  // with 12, o would be subnormal in f16
    check_exact(one);

    one.sinks.assign(4, 1e30f);
    auto const all = run(one);
    CHECK(std::all_of(all.o.begin(), all.o.end(), [](std::byte byte) { return byte == std::byte{0}; }));
    CHECK(all.lse == std::vector<float>(all.lse.size(), 1e30f));
  }
}

TEST_CASE("on a device keys that a row does not see do not touch it, whatever they hold", "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (std::int32_t const dim : {64, 256}) {
      CAPTURE(static_cast<int>(type), dim);
      auto plan = heads(type, 2, 1, dim, dim);
      plan.window = 50;
      batch one(plan, {{{100, 120, 1100}, 1200}});
      auto const clean = run(one);
      for (std::int64_t j = 0; j < 1200; ++j) {
        if ((j >= 51 && j <= 120) || (j >= 1051 && j <= 1100)) continue;  // seen by one of them
        batch::fill_row(one.keys[0], dim, j, quiet_nan);
        batch::fill_row(one.values[0], dim, j, j % 2 == 0 ? infinity : quiet_nan);
      }
      CHECK(run(one) == clean);
    }
  }
}

TEST_CASE("a key that is not finite reaches the rows of a tile that see it and no others", "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (std::int32_t const dim : {64, 128, 256}) {
      for (float const bad : {quiet_nan, infinity, -infinity}) {
        CAPTURE(static_cast<int>(type), dim, bad);
        batch one(heads(type, 1, 1, dim, dim), {{consecutive(90, 20), 128}});
        device_batch const before(one);
        auto const clean = before.rows_of(before.run());
        batch::fill_row(one.values[0], dim, 100, bad);
        if (std::isnan(bad)) batch::fill_row(one.keys[0], dim, 100, bad);
        device_batch const after(one);
        auto const rows = after.rows_of(after.run());
        auto const half = rows.begin() + 10 * dim;
        CHECK(std::equal(rows.begin(), half, clean.begin()));
        CHECK(std::none_of(half, rows.end(), [](float x) { return std::isfinite(x); }));
        bool const stays = type != dtype::f32 && !std::isnan(bad);  // compensated sums make NaN of an infinity
        if (stays) CHECK(std::all_of(half, rows.end(), [=](float x) { return x == bad; }));
      }
    }
  }
}

TEST_CASE("a row's bits depend neither on the rows beside it nor on later keys", "[cuda][seam_attention]") {
  for (auto const type : types) {
    auto const plan = heads(type, 4, 1, 64, 64);
    batch const whole(plan, {at_borders()});
    auto const all = run(whole);
    for (std::size_t row = 0; row < whole.at.size(); ++row) {
      CAPTURE(static_cast<int>(type), row);
      batch alone(plan, {{{whole.at[row]}, whole.at[row] + 1}});
      std::copy_n(whole.q.begin() + static_cast<std::ptrdiff_t>(row) * 256, 256, alone.q.begin());
      std::copy_n(whole.keys[0].begin(), alone.keys[0].size(), alone.keys[0].begin());
      std::copy_n(whole.values[0].begin(), alone.values[0].size(), alone.values[0].begin());
      auto const one = run(alone);
      CHECK(std::equal(one.o.begin(), one.o.end(), all.o.begin() + static_cast<std::ptrdiff_t>(row * one.o.size())));
      CHECK(std::equal(one.lse.begin(), one.lse.end(), all.lse.begin() + static_cast<std::ptrdiff_t>(row * 4)));
    }
  }
}

TEST_CASE("on a device the first request has the same bits alone and in batches of 2, 7 and 64",
          "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (auto const& first : {seams(400), at_borders()}) {
      auto const plan = heads(type, 8, 2, 128, 128);
      batch const alone(plan, {first});
      auto const wanted = run(alone);
      for (std::int64_t const size : {2, 7, 64}) {
        CAPTURE(static_cast<int>(type), first.keys, size);
        std::vector<request> requests = {first};
        for (std::int64_t i = 1; i < size; ++i)
          requests.push_back({consecutive(i * 20, i % 40), i * 20 + 40 + (i == 1 ? 3000 : 0)});
        batch const many(plan, requests);
        CHECK(first_of(many, run(many)) == wanted);
      }
    }
  }
}

TEST_CASE("repeated runs, either path's name and any alignment of the scratch give the same bits",
          "[cuda][seam_attention]") {
  for (auto const type : types) {
    CAPTURE(static_cast<int>(type));
    batch const one(heads(type, 8, 1, 256, 256), mixed());
    device_batch const first(one);
    auto const wanted = first.run();
    CHECK(first.run() == wanted);
    CHECK(first.run(kernel_path::generic) == wanted);
    for (std::size_t const misalignment : {0u, 4u, 63u}) CHECK(device_batch(one, misalignment).run() == wanted);
  }
}

TEST_CASE("a captured call holds the stated kernels and serves other tables when replayed", "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (bool const many_splits : {false, true}) {
      CAPTURE(static_cast<int>(type), many_splits);
      auto plan = heads(type, 8, 2, 64, 64);
      plan.page_size = 16;
      plan = with_dense_strides(plan);
      request const long_one = many_splits ? at_borders() : seams(500);
      auto const rows = static_cast<std::int64_t>(long_one.rows.size());
      batch const early(plan, {long_one, {consecutive(100, 40), 140}, {{3}, 9}});
      batch const late(plan, {{{7}, 10}, {consecutive(20, 40), 61}, long_one});
      REQUIRE(early.plan == late.plan);
      REQUIRE(early.plan.total_rows == rows + 41);

      device_batch const served(early);
      device_batch const other(late);
      test_stream const stream;
      captured_graph const graph(stream, [&] { REQUIRE(served.attend(stream) == status::ok); });
      CHECK(early.plan.kernels() == (many_splits ? 2 : 1));
      CHECK(graph.kernels() == to_index(early.plan.kernels()));
      CHECK(graph.nodes() == graph.kernels());
      served.poison();
      graph.replay();
      CHECK(served.results() == run(early));
      served.become(other);
      served.poison();
      graph.replay();
      CHECK(served.results() == run(late));
    }
  }
}

TEST_CASE("a call of fewer requests, rows and keys than its plan holds writes its own rows", "[cuda][seam_attention]") {
  for (auto const type : types) {
    CAPTURE(static_cast<int>(type));
    batch small(heads(type, 4, 2, 64, 64), {seams(200), {{5}, 6}});
    auto const wanted = run(small);
    small.plan.most_keys = 5000;
    CHECK(run(small) == wanted);

    auto const rows = small.plan.total_rows;
    small.plan.total_rows += 100;
    small.at.resize(to_index(rows) + 100, std::numeric_limits<std::int64_t>::max());
    auto const more = run(small);
    CHECK(std::equal(wanted.o.begin(), wanted.o.end(), more.o.begin()));
    CHECK(std::all_of(more.o.begin() + static_cast<std::ptrdiff_t>(wanted.o.size()), more.o.end(),
                      [](std::byte byte) { return byte == std::byte{0xff}; }));
  }
}

TEST_CASE("a position out of range sees no key", "[cuda][seam_attention]") {
  for (auto const type : types) {
    for (std::int64_t const most_keys : {300, 3000}) {
      batch one(heads(type, 4, 2, 64, 64), {{{10, 20, 30, 40, 50, 60}, 300}});
      one.plan.most_keys = most_keys;
      auto const clean = run(one);
      auto const per_row = static_cast<std::ptrdiff_t>(4 * 64 * size_of(type));
      one.at = {-1, 20, std::numeric_limits<std::int64_t>::min(), 300, std::numeric_limits<std::int64_t>::max(), 60};
      for (bool const with_sink : {false, true}) {
        CAPTURE(static_cast<int>(type), most_keys, with_sink);
        if (with_sink) one.sinks.assign(4, 2.5f);
        auto const found = run(one);
        for (std::ptrdiff_t row = 0; row < 6; ++row) {
          bool const out = row != 1 && row != 5;
          auto const from = found.o.begin() + row * per_row;
          if (out) {
            CHECK(std::all_of(from, from + per_row, [](std::byte byte) { return byte == std::byte{0}; }));
            CHECK(found.lse[static_cast<std::size_t>(row) * 4] == (with_sink ? 2.5f : -infinity));
          } else if (!with_sink) {
            CHECK(std::equal(from, from + per_row, clean.o.begin() + row * per_row));
          }
        }
      }
    }
  }
}

TEST_CASE("on a device the log-sum-exp is optional", "[cuda][seam_attention]") {
  for (std::int64_t const most_keys : {400, 4000}) {
    batch one(heads(dtype::bf16, 4, 2, 64, 64), {seams(400)});
    one.plan.most_keys = most_keys;
    device_batch on_device(one);
    auto const with = on_device.run();
    on_device.tables.lse = nullptr;
    auto const without = on_device.run();
    CHECK(without.o == with.o);
    CHECK(std::all_of(without.lse.begin(), without.lse.end(), [](float x) { return std::isnan(x); }));
  }
}

TEST_CASE("on a device no requests, no rows and no keys are fine", "[cuda][seam_attention]") {
  auto const plan = heads(dtype::bf16, 2, 1, 64, 64);
  CHECK(batch(plan, {}).plan.kernels() == 0);
  run(batch(plan, {}));
  run(batch(plan, {{{}, 0}, {{}, 5}}));
  auto const found = run(batch(plan, {{{0}, 0}}));
  CHECK(std::all_of(found.o.begin(), found.o.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  CHECK(found.lse == std::vector<float>(2, -infinity));
}

TEST_CASE("keys and values past 2^31 elements give the bits of near ones", "[cuda][seam_attention][large]") {
  for (auto const type : {dtype::bf16, dtype::f32}) {
    for (std::int64_t const page_size : {0, 16}) {
      CAPTURE(static_cast<int>(type), page_size);
      auto plan = heads(type, 8, 2, 128, 128);
      plan.page_size = page_size;
      plan = with_dense_strides(plan);
      request const one = {consecutive(70, 10), 80};
      auto const wanted = run(batch(plan, {one}));
      auto& far = page_size == 0 ? plan.keys.token : plan.keys.page;
      far = (std::int64_t{1} << 32) / (page_size == 0 ? 80 : 5) / 64 * 64;
      plan.values = plan.keys;
      CHECK(run(batch(plan, {one})) == wanted);
    }
  }
}

TEST_CASE("a device plan's faults are named", "[cuda][seam_attention]") {
  auto const fault = [](status::code code, auto change) -> std::string {
    auto plan = heads(dtype::bf16, 4, 2, 64, 64);
    plan.total_rows = plan.requests = plan.most_keys = 1;
    REQUIRE(validate(plan) == status::ok);
    change(plan);
    auto const outcome = validate(plan);
    CHECK(outcome == code);
    return outcome.argument();
  };
  auto const shape = status::invalid_shape;
  auto const argument = status::invalid_argument;
  auto const unsupported = status::unsupported;
  CHECK(fault(argument, [](auto& plan) { plan.type = static_cast<dtype>(3); }) == "plan.type");
  CHECK(fault(shape, [](auto& plan) { plan.query_heads = 0; }) == "plan.query_heads");
  CHECK(fault(shape, [](auto& plan) { plan.query_heads = 5; }) == "plan.query_heads");
  CHECK(fault(shape, [](auto& plan) { plan.kv_heads = 0; }) == "plan.kv_heads");
  CHECK(fault(shape, [](auto& plan) { plan.key_dim = 0; }) == "plan.key_dim");
  CHECK(fault(shape, [](auto& plan) { plan.key_dim = 24; }) == "plan.key_dim");
  CHECK(fault(unsupported, [](auto& plan) { plan.value_dim = 272; }) == "plan.value_dim");
  CHECK(fault(argument, [](auto& plan) { plan.scale = infinity; }) == "plan.scale");
  CHECK(fault(argument, [](auto& plan) { plan.soft_cap = quiet_nan; }) == "plan.soft_cap");
  CHECK(fault(argument, [](auto& plan) { plan.soft_cap = -1.0f; }) == "plan.soft_cap");
  CHECK(fault(argument, [](auto& plan) { plan.window = -1; }) == "plan.window");
  CHECK(fault(shape, [](auto& plan) { plan.page_size = -1; }) == "plan.page_size");
  CHECK(fault(shape, [](auto& plan) { plan.total_rows = -1; }) == "plan.total_rows");
  CHECK(fault(unsupported, [](auto& plan) { plan.total_rows = 1 << 29; }) == "plan.total_rows");
  CHECK(fault(shape, [](auto& plan) { plan.requests = -1; }) == "plan.requests");
  CHECK(fault(shape, [](auto& plan) { plan.most_keys = -1; }) == "plan.most_keys");
  CHECK(fault(unsupported, [](auto& plan) { plan.most_keys = 1 << 26; }) == "plan.most_keys");
  CHECK(fault(shape, [](auto& plan) { plan.q.row += 4; }) == "plan.q.row");
  CHECK(fault(shape, [](auto& plan) { plan.o.head = 0; }) == "plan.o.head");
  CHECK(fault(shape, [](auto& plan) { plan.keys.token += 1; }) == "plan.keys.token");
  CHECK(fault(shape, [](auto& plan) { plan.values.head = -8; }) == "plan.values.head");
}

TEST_CASE("on a device misused arguments are refused by name and nothing is written", "[cuda][seam_attention]") {
  batch of(heads(dtype::bf16, 4, 2, 64, 64), {seams(100)});
  of.plan.most_keys = 2000;
  device_batch const one(of);
  one.poison();
  test_stream const stream;
  device_bytes const scratch(to_index(of.plan.workspace_bytes()));
  auto const fault = [&](status::code code, auto change) -> std::string {
    auto tables = one.tables;
    device_exec ex{stream.get(), scratch.span()};
    change(tables, ex);
    auto const outcome = seam_attention(of.plan, tables, ex);
    CHECK(outcome == code);
    return outcome.argument();
  };
  auto const argument = status::invalid_argument;
  CHECK(fault(argument, [](auto& tables, auto&) { tables.requests = nullptr; }) == "tables.requests");
  CHECK(fault(argument, [](auto& tables, auto&) { tables.positions = nullptr; }) == "tables.positions");
  CHECK(fault(argument, [](auto& tables, auto&) { tables.q = nullptr; }) == "tables.q");
  CHECK(fault(argument, [](auto& tables, auto&) { tables.o = nullptr; }) == "tables.o");
  CHECK(fault(argument, [](auto& tables, auto&) { tables.o = static_cast<std::byte*>(tables.o) + 2; }) == "tables.o");
  CHECK(fault(argument, [](auto&, auto& ex) { ex.stream = stream_ref{nullptr}; }) == "ex.stream");
  CHECK(fault(status::workspace_too_small,
              [](auto&, auto& ex) { ex.workspace = ex.workspace.first(ex.workspace.size() - 1); }) == "ex.workspace");
  CHECK(fault(status::unsupported, [](auto&, auto& ex) { ex.path = kernel_path::hopper; }).find("hopper") !=
        std::string::npos);
  stream.wait();
  auto const found = one.results();
  CHECK(std::all_of(found.o.begin(), found.o.end(), [](std::byte byte) { return byte == std::byte{0xff}; }));
}
