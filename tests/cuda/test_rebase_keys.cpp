// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/rebase_keys.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/stored_types.hpp"
#include "hypic/cuda/angles.hpp"
#include "support/rotary_case.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int64_t heads = 2;

struct span_spec {
  std::int64_t rows = 0;
  std::int64_t first_position = 0;
  std::int64_t turn = 0;
};

/// How rows lie in memory, which decides whether they are moved 16 bytes at a time.
struct form {
  char const* text = "";
  std::int64_t value_dim = 0;
  std::int64_t gap = 0;     ///< elements after each vector
  std::int64_t shift = 0;   ///< elements before the first
  bool head_major = false;  ///< [page, head, row, dim] in place of [page, row, head, dim]
};
constexpr form wide{"16 bytes at a time", 48, 8, 0, false};
constexpr std::array<form, 4> forms{wide,
                                    {"16 bytes at a time, head by head", 48, 8, 0, true},
                                    {"bases that are not aligned", 48, 8, 1, false},
                                    {"strides that are not aligned", 9, 3, 1, false}};

device_bytes upload(std::vector<std::byte> const& image) {
  device_bytes memory(image.size());
  memory.write(image.data(), image.size());
  return memory;
}

stored_image download(dtype type, device_bytes const& memory) {
  stored_image image(type, static_cast<std::int64_t>(memory.size()) / size_of(type));
  memory.read(image.bytes().data(), memory.size());
  return image;
}

void* address(device_bytes const& memory, dtype type, std::int64_t element) {
  return memory.data() + element * size_of(type);
}

placed_strides placed(form const& how, std::int64_t dim, std::int64_t rows) {
  auto const vector = dim + how.gap;
  if (how.head_major) return {heads * rows * vector + how.gap, vector, rows * vector};
  auto const row = heads * vector + how.gap;
  return {rows * row + how.gap, row, vector};
}

/// Vectors of keys or of values of one cached span.
struct cached_rows {
  std::vector<float> packed;  ///< [rows, heads, dim], numbers of the type
  stored_image image;
  device_bytes memory;

  cached_rows(dtype type, form const& how, cached_strides const& strides, std::int64_t rows, std::int64_t dim,
              std::uint64_t seed)
      : image(type, how.shift + rows * strides.row) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < dim; ++d) {
          packed.push_back(rounded_to(type, normal(random)));
          image.set(how.shift + r * strides.row + h * strides.head + d, packed.back());
        }
      }
    }
    memory = upload(image.bytes());
  }
  bool unchanged(dtype type) const { return download(type, memory).bytes() == image.bytes(); }
};

/// The spans of one call with their memory, and what is right for them.
class key_call {
 public:
  key_call(rotary_case const& one, dtype type, form const& how, std::int64_t page_size, std::vector<span_spec> specs,
           std::uint64_t seed = 1)
      : one_(one), how_(how), specs_(std::move(specs)) {
    std::int64_t most_rows = 0;
    request_rows_ = 1;
    for (auto const& spec : specs_) {
      most_rows = std::max(most_rows, spec.rows);
      request_rows_ = std::max(request_rows_, spec.first_position + spec.rows);
    }
    auto const count = static_cast<std::int64_t>(specs_.size());
    auto const pages = page_size == 0 ? 0 : (request_rows_ + page_size - 1) / page_size;
    auto const pairs = static_cast<std::int32_t>(one.rotary.frequencies.size());
    kv_shape const shape{heads, static_cast<std::int32_t>(one.dim), static_cast<std::int32_t>(how.value_dim), pairs,
                         one.rotary.pairing};
    plan = plan_rebase_keys(type, shape, {page_size, page_size == 0 ? 0 : count * pages + 3}, count, most_rows);
    plan.cached_keys = {heads * (one.dim + how.gap) + how.gap, one.dim + how.gap};
    plan.cached_values = {heads * (how.value_dim + how.gap) + how.gap, how.value_dim + how.gap};
    auto const together = page_size == 0 ? request_rows_ : page_size;
    plan.placed_keys = placed(how, one.dim, together);
    plan.placed_values = placed(how, how.value_dim, together);
    auto const parts = page_size == 0 ? count : plan.pages.count;
    keys_out_ = device_bytes(to_index((how.shift + parts * plan.placed_keys.page) * size_of(type)));
    values_out_ = device_bytes(to_index((how.shift + parts * plan.placed_values.page) * size_of(type)));
    deal_pages(pages, seed);
    for (std::int64_t i = 0; i < count; ++i) add(i, seed + 100 * static_cast<std::uint64_t>(i));
    table_ = device_array<rebase_span>(spans_);
  }

  rebase_keys_plan plan;

  std::vector<rebase_span> const& spans() const { return spans_; }
  device_array<rebase_span> const& table() const { return table_; }
  void poison() const {
    keys_out_.poison();
    values_out_.poison();
  }
  /// Table entry `at` of a span's pages; the pages that lie beyond it stay as they are.
  void set_page(std::size_t span, std::size_t at, std::int32_t page) {
    pages_[span][at] = page;
    page_tables_[span].set(pages_[span]);
  }

  status queue(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    return rebase_keys(plan, table_.data(), {.stream = stream.get(), .path = path});
  }
  void run(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    poison();
    REQUIRE(queue(stream, path) == status::ok);
    stream.wait();
  }

  /// All that the outputs hold.
  std::vector<std::byte> outputs() const {
    auto all = download(plan.type, keys_out_).bytes();
    auto const values = download(plan.type, values_out_).bytes();
    all.insert(all.end(), values.begin(), values.end());
    return all;
  }
  /// What a contiguous request's memory holds.
  std::vector<std::byte> request(std::int64_t span) const {
    auto all = part_of(keys_out_, span, plan.placed_keys.page);
    auto const values = part_of(values_out_, span, plan.placed_values.page);
    all.insert(all.end(), values.begin(), values.end());
    return all;
  }

  /// Every placed row is right, nothing else was written, and the cached copies are what they were.
  void check() const {
    auto keys = download(plan.type, keys_out_);
    auto values = download(plan.type, values_out_);
    for (std::int64_t i = 0; i < plan.spans; ++i) {
      CAPTURE(i);
      check_keys(i, keys);
      check_values(i, values);
      CHECK(cached_keys_[to_index(i)].unchanged(plan.type));
      CHECK(cached_values_[to_index(i)].unchanged(plan.type));
    }
    CHECK(keys.all_poison());
    CHECK(values.all_poison());
  }

 private:
  std::vector<std::byte> part_of(device_bytes const& memory, std::int64_t span, std::int64_t elements) const {
    std::vector<std::byte> part(to_index(elements * size_of(plan.type)));
    memory.read(part.data(), part.size(), to_index((how_.shift + span * elements) * size_of(plan.type)));
    return part;
  }

  void deal_pages(std::int64_t pages, std::uint64_t seed) {
    std::vector<std::int32_t> pool(to_index(plan.pages.count));
    std::iota(pool.begin(), pool.end(), 0);
    std::shuffle(pool.begin(), pool.end(), std::mt19937_64(seed));
    for (std::size_t i = 0; i < specs_.size() && pages > 0; ++i) {
      auto const first = pool.begin() + static_cast<std::ptrdiff_t>(i) * pages;
      pages_.emplace_back(first, first + pages);
      page_tables_.emplace_back(pages_.back());
    }
  }

  void add(std::int64_t i, std::uint64_t seed) {
    auto const& spec = specs_[to_index(i)];
    auto const turn = make_rotation(one_.rotary, spec.turn);
    std::vector<float> angles(2 * turn.cosine.size());
    REQUIRE(write_angles(turn, angles) == status::ok);
    angles_.emplace_back(angles);
    auto const type = plan.type;
    cached_keys_.emplace_back(type, how_, plan.cached_keys, spec.rows, one_.dim, seed);
    cached_values_.emplace_back(type, how_, plan.cached_values, spec.rows, how_.value_dim, seed + 1);
    bool const paged = plan.pages.page_size > 0;
    spans_.push_back({.keys = address(cached_keys_.back().memory, type, how_.shift),
                      .values = address(cached_values_.back().memory, type, how_.shift),
                      .rows = spec.rows,
                      .angles = turn.identity() ? nullptr : angles_.back().data(),
                      .keys_out = address(keys_out_, type, how_.shift + (paged ? 0 : i * plan.placed_keys.page)),
                      .values_out = address(values_out_, type, how_.shift + (paged ? 0 : i * plan.placed_values.page)),
                      .pages = paged ? page_tables_[to_index(i)].data() : nullptr,
                      .first_position = spec.first_position});
  }

  /// Where row `row` of span `i` has its head `head`; below 0: nowhere.
  std::int64_t place(std::int64_t i, std::int64_t row, std::int64_t head, placed_strides const& strides) const {
    auto const position = specs_[to_index(i)].first_position + row;
    auto const page_size = plan.pages.page_size;
    if (page_size == 0) return how_.shift + i * strides.page + position * strides.row + head * strides.head;
    std::int64_t const page = pages_[to_index(i)][to_index(position / page_size)];
    if (page < 0 || page >= plan.pages.count) return -1;
    return how_.shift + page * strides.page + position % page_size * strides.row + head * strides.head;
  }

  /// Calls fn(packed index of the vector's first element, its place).
  template <class Fn>
  void for_each_vector(std::int64_t i, std::int64_t dim, placed_strides const& strides, Fn const& fn) const {
    for (std::int64_t row = 0; row < specs_[to_index(i)].rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        auto const to = place(i, row, head, strides);
        if (to >= 0) fn((row * heads + head) * dim, to);
      }
    }
  }

  /// Half a unit in the last place, and what arithmetic in fp32 may add.
  double allowed(std::vector<float> const& packed, std::int64_t vector, std::int64_t d, double wanted) const {
    auto const pairs = std::int64_t{plan.shape.rotary_pairs};
    bool const turns = d < 2 * pairs;
    if (!turns) return 0.0;
    auto const partner = one_.interleaved() ? d ^ 1 : d < pairs ? d + pairs : d - pairs;
    auto const length = std::hypot(packed[to_index(vector + d)], packed[to_index(vector + partner)]);
    return unit_at(plan.type, wanted) / 2.0 + 1.7e-7 * static_cast<double>(length);
  }

  void check_keys(std::int64_t i, stored_image& keys) const {
    auto const& packed = cached_keys_[to_index(i)].packed;
    auto const turn = specs_[to_index(i)].turn;
    auto const wanted = one_.turned(packed, static_cast<oracle::real>(turn));
    std::int64_t wrong = 0;
    std::vector<float> found_all;
    std::vector<double> wanted_all;
    for_each_vector(i, one_.dim, plan.placed_keys, [&](std::int64_t vector, std::int64_t to) {
      for (std::int64_t d = 0; d < one_.dim; ++d) {
        auto const exact = wanted[to_index(vector + d)];
        auto const found = keys.get(to + d);
        auto const off = std::abs(static_cast<double>(found) - exact);
        wrong += off <= (turn == 0 ? 0.0 : allowed(packed, vector, d, exact)) ? 0 : 1;  // NaN is wrong
        found_all.push_back(found);
        wanted_all.push_back(exact);
        keys.poison(to + d);
      }
    });
    CHECK(wrong == 0);
    if (plan.type == dtype::f32) CHECK(relative_error(found_all, wanted_all) <= 2e-7);
  }
  void check_values(std::int64_t i, stored_image& values) const {
    auto const& packed = cached_values_[to_index(i)].packed;
    std::int64_t wrong = 0;
    for_each_vector(i, how_.value_dim, plan.placed_values, [&](std::int64_t vector, std::int64_t to) {
      for (std::int64_t d = 0; d < how_.value_dim; ++d) {
        wrong += values.get(to + d) == packed[to_index(vector + d)] ? 0 : 1;
        values.poison(to + d);
      }
    });
    CHECK(wrong == 0);
  }

  rotary_case one_;
  form how_;
  std::vector<span_spec> specs_;
  std::int64_t request_rows_ = 0;
  std::vector<std::vector<std::int32_t>> pages_;
  std::vector<device_array<std::int32_t>> page_tables_;
  std::vector<device_array<float>> angles_;
  std::vector<cached_rows> cached_keys_, cached_values_;
  device_bytes keys_out_, values_out_;
  std::vector<rebase_span> spans_;
  device_array<rebase_span> table_;
};

std::vector<span_spec> mixed_spans() {
  return {{37, 3, 1}, {1, 0, 4096}, {0, 9, 77}, {70, 5, 1'000'000}, {33, 0, 0}, {16, 16, -999'999}};
}

constexpr std::array<dtype, 3> types{dtype::f32, dtype::f16, dtype::bf16};

}  // namespace

TEST_CASE(
    "keys placed by the device equal the exact turn of the cached ones to position 1e6, values are copied, and "
    "nothing else is written",
    "[cuda][rebase_keys][case-16][case-17]") {
  test_stream const stream;
  for (auto const& one : rotary_cases()) {
    for (auto const type : types) {
      for (auto const& how : forms) {
        for (std::int64_t const page_size : {0, 16, 7}) {
          CAPTURE(one.text, static_cast<int>(type), how.text, page_size);
          key_call const call(one, type, how, page_size, mixed_spans());
          call.run(stream);
          call.check();
        }
      }
    }
  }
}

TEST_CASE(
    "placed keys are the same bits on each path, in each run, and for any number of rows that the grid is made for",
    "[cuda][rebase_keys]") {
  test_stream const stream;
  for (auto const& one : {rotary_cases().front(), rotary_cases().back()}) {
    for (auto const type : types) {
      CAPTURE(one.text, static_cast<int>(type));
      key_call call(one, type, wide, 16, mixed_spans());
      call.run(stream);
      auto const first = call.outputs();
      for (auto const path : kernel_paths()) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          call.run(stream, path);
          CHECK(call.outputs() == first);
        }
      }
      for (std::int64_t const rows : {0, 1, 17, 1000}) {
        CAPTURE(rows);
        call.plan.rows = rows;
        call.run(stream);
        CHECK(call.outputs() == first);
      }
    }
  }
}

TEST_CASE("a span's placed keys are the same bits alone and in batches of 7 and 64", "[cuda][rebase_keys]") {
  test_stream const stream;
  for (auto const& one : {rotary_cases().front(), rotary_cases().back()}) {
    for (auto const type : types) {
      CAPTURE(one.text, static_cast<int>(type));
      auto const first_of = [&](std::int64_t spans) {
        std::vector<span_spec> specs;
        for (std::int64_t i = 0; i < spans; ++i) specs.push_back({70 - i % 5, i % 3, 1000 + 37 * i});
        specs.front() = {70, 2, 54'321};
        key_call const call(one, type, wide, 0, specs);
        call.run(stream);
        return call.request(0);
      };
      auto const alone = [&] {
        key_call const call(one, type, wide, 0, {{70, 2, 54'321}});
        call.run(stream);
        return call.request(0);
      }();
      CHECK(first_of(7) == alone);
      CHECK(first_of(64) == alone);
    }
  }
}

TEST_CASE("the order of dimensions in memory does not change a placed key's bits", "[cuda][rebase_keys]") {
  test_stream const stream;
  for (auto const& one : rotary_cases()) {
    CAPTURE(one.text);
    // Of the same seed both have the same keys; only the second has bases that allow 16 bytes at a time.
    form const shifted{"shifted", wide.value_dim, wide.gap, 1, false};
    key_call const slow(one, dtype::bf16, shifted, 0, mixed_spans());
    key_call const fast(one, dtype::bf16, wide, 0, mixed_spans());
    slow.run(stream);
    fast.run(stream);
    for (std::int64_t span = 0; span < fast.plan.spans; ++span) CHECK(slow.request(span) == fast.request(span));
  }
}

TEST_CASE("a row whose page is negative or not one of the pool's is skipped", "[cuda][rebase_keys][case-14]") {
  test_stream const stream;
  for (auto const type : types) {
    key_call call(rotary_cases().front(), type, wide, 16, mixed_spans());
    call.set_page(0, 1, -1);
    call.set_page(3, 0, static_cast<std::int32_t>(call.plan.pages.count));
    call.set_page(3, 2, std::numeric_limits<std::int32_t>::max());
    call.set_page(5, 1, std::numeric_limits<std::int32_t>::min());
    call.run(stream);
    call.check();
  }
}

TEST_CASE("a captured call is one kernel, and replayed it serves other spans, lengths, turns and pages",
          "[cuda][rebase_keys][case-17]") {
  test_stream const stream;
  for (auto const page_size : {0, 16}) {
    CAPTURE(page_size);
    auto const one = rotary_cases().front();
    key_call call(one, dtype::bf16, wide, page_size, mixed_spans());
    std::vector<span_spec> const others{{5, 60, 9}, {64, 7, -3}, {70, 5, 123}, {0, 0, 1}, {1, 74, 999'999}, {12, 0, 0}};
    key_call const next(one, dtype::bf16, wide, page_size, others, 7);
    REQUIRE(next.plan == call.plan);

    captured_graph const graph(stream, [&] { REQUIRE(call.queue(stream) == status::ok); });
    CHECK(graph.kernels() == 1);
    CHECK(graph.nodes() == 1);
    for (int repeat = 0; repeat < 2; ++repeat) {
      call.table().set(call.spans());
      call.poison();
      graph.replay();
      call.check();
      call.table().set(next.spans());
      call.poison();
      next.poison();
      graph.replay();
      next.check();
    }
  }
}

TEST_CASE("rows past 2^31 elements equal those of a small pool, read and written",
          "[cuda][rebase_keys][case-01][large]") {
  test_stream const stream;
  auto const one = rotary_cases().front();
  constexpr std::int64_t page_size = 16;
  constexpr std::int64_t rows = 40;
  kv_shape const shape{heads, static_cast<std::int32_t>(one.dim), 8,
                       static_cast<std::int32_t>(one.rotary.frequencies.size()), one.rotary.pairing};
  auto const row = heads * one.dim;
  std::int64_t const count = (std::int64_t{5} << 30) / (2 * page_size * row);  // 5 GiB of keys
  REQUIRE(count * page_size * row > (std::int64_t{1} << 31) + (std::int64_t{1} << 28));

  auto const turn = make_rotation(one.rotary, 77'777);
  std::vector<float> angles(2 * turn.cosine.size());
  REQUIRE(write_angles(turn, angles) == status::ok);
  device_array<float> const device_angles(angles);
  auto const plan_of = [&](kv_pages const& pages) { return plan_rebase_keys(dtype::bf16, shape, pages, 1, rows); };
  auto const small = plan_of({page_size, 3});
  cached_rows const keys(dtype::bf16, {}, small.cached_keys, rows, one.dim, 1);
  cached_rows const values(dtype::bf16, {}, small.cached_values, rows, shape.value_dim, 2);
  auto const key_bytes = to_index(row * 2);
  auto const value_bytes = to_index(heads * shape.value_dim * 2);

  // The rows of positions [first, first + rows), as they stand in pools of which page `pages[i]` holds the i-th 16.
  auto const placed_rows = [&](rebase_keys_plan const& plan, device_bytes const& key_pool,
                               device_bytes const& value_pool, std::vector<std::int32_t> const& pages,
                               std::int64_t first) {
    device_array<std::int32_t> const page_table(pages);
    device_array<rebase_span> const table(std::vector<rebase_span>{{.keys = keys.memory.data(),
                                                                    .values = values.memory.data(),
                                                                    .rows = rows,
                                                                    .angles = device_angles.data(),
                                                                    .keys_out = key_pool.data(),
                                                                    .values_out = value_pool.data(),
                                                                    .pages = page_table.data(),
                                                                    .first_position = first}});
    key_pool.poison();
    value_pool.poison();
    REQUIRE(rebase_keys(plan, table.data(), {stream.get()}) == status::ok);
    stream.wait();
    std::vector<std::byte> found(to_index(rows) * (key_bytes + value_bytes));
    for (std::int64_t r = 0; r < rows; ++r) {
      auto const position = first + r;
      bool const paged = plan.pages.page_size > 0;
      auto const at = paged ? pages[to_index(position / page_size)] * page_size + position % page_size : position;
      auto* const to = found.data() + to_index(r) * (key_bytes + value_bytes);
      key_pool.read(to, key_bytes, to_index(at) * key_bytes);
      value_pool.read(to + key_bytes, value_bytes, to_index(at) * value_bytes);
    }
    return found;
  };

  device_bytes const small_keys(to_index(3 * page_size) * key_bytes);
  device_bytes const small_values(to_index(3 * page_size) * value_bytes);
  device_bytes const large_keys(to_index(count * page_size) * key_bytes);
  device_bytes const large_values(to_index(count * page_size) * value_bytes);
  auto const wanted = placed_rows(small, small_keys, small_values, {2, 0, 1}, 5);
  REQUIRE(std::memcmp(wanted.data() + key_bytes, values.image.bytes().data(), value_bytes) == 0);
  auto const last = static_cast<std::int32_t>(count - 1);
  auto const border = static_cast<std::int32_t>((std::int64_t{1} << 31) / (page_size * row));
  CHECK(placed_rows(plan_of({page_size, count}), large_keys, large_values, {last, border, border - 1}, 5) == wanted);
  CHECK(placed_rows(plan_of({}), large_keys, large_values, {0}, count * page_size - rows) == wanted);

  // Cached rows 2^30 elements apart: the third starts at 2^31.
  auto apart = plan_of({page_size, 3});
  apart.cached_keys.row = std::int64_t{1} << 30;
  for (std::int64_t r = 0; r < 3; ++r)
    large_keys.write(keys.image.bytes().data() + to_index(r) * key_bytes, key_bytes,
                     to_index(r * apart.cached_keys.row) * 2);
  device_array<std::int32_t> const page_table(std::vector<std::int32_t>{2});
  device_array<rebase_span> const table(std::vector<rebase_span>{{.keys = large_keys.data(),
                                                                  .values = values.memory.data(),
                                                                  .rows = 3,
                                                                  .angles = device_angles.data(),
                                                                  .keys_out = small_keys.data(),
                                                                  .values_out = small_values.data(),
                                                                  .pages = page_table.data(),
                                                                  .first_position = 5}});
  small_keys.poison();
  REQUIRE(rebase_keys(apart, table.data(), {stream.get()}) == status::ok);
  stream.wait();
  for (std::size_t r = 0; r < 3; ++r) {
    std::vector<std::byte> found(key_bytes);
    small_keys.read(found.data(), key_bytes, to_index(2 * page_size + 5) * key_bytes + r * key_bytes);
    CHECK(std::memcmp(found.data(), wanted.data() + r * (key_bytes + value_bytes), key_bytes) == 0);
  }
}

TEST_CASE("placing no spans is fine", "[cuda][rebase_keys]") {
  test_stream const stream;
  auto const plan = plan_rebase_keys(dtype::bf16, {1, 8, 8, 4}, {}, 0, 0);
  CHECK(rebase_keys(plan, nullptr, {stream.get()}) == status::ok);
}

TEST_CASE("misused plans of rebased keys are refused by name before a kernel is queued", "[cuda][rebase_keys]") {
  auto const good = plan_rebase_keys(dtype::f16, {2, 64, 32, 16}, {16, 10}, 3, 100);
  REQUIRE(validate(good) == status::ok);
  auto const fault = [&](auto const& spoil) -> std::string {
    auto plan = good;
    spoil(plan);
    auto const outcome = validate(plan);
    CHECK(outcome != status::ok);
    CHECK(rebase_keys(plan, nullptr, {stream_ref{nullptr}}) == outcome);
    return outcome.argument();
  };
  CHECK(fault([](auto& p) { p.type = static_cast<dtype>(3); }) == "plan.type");
  CHECK(fault([](auto& p) { p.shape.pairing = static_cast<rotary_pairing>(2); }) == "plan.shape.pairing");
  CHECK(fault([](auto& p) { p.shape.kv_heads = 0; }) == "plan.shape.kv_heads");
  CHECK(fault([](auto& p) { p.shape.kv_heads = 1 << 30; }) == "plan.shape.kv_heads");
  CHECK(fault([](auto& p) { p.shape.key_dim = 0; }) == "plan.shape.key_dim");
  CHECK(fault([](auto& p) { p.shape.value_dim = -1; }) == "plan.shape.value_dim");
  CHECK(fault([](auto& p) { p.shape.rotary_pairs = -1; }) == "plan.shape.rotary_pairs");
  CHECK(fault([](auto& p) { p.shape.rotary_pairs = 33; }) == "plan.shape.rotary_pairs");
  CHECK(fault([](auto& p) { p.pages.page_size = -1; }) == "plan.pages.page_size");
  CHECK(fault([](auto& p) { p.pages.page_size = std::int64_t{1} << 31; }) == "plan.pages.page_size");
  CHECK(fault([](auto& p) { p.pages.count = -1; }) == "plan.pages.count");
  CHECK(fault([](auto& p) { p.cached_keys.row = -1; }) == "plan.cached_keys.row");
  CHECK(fault([](auto& p) { p.cached_keys.head = -1; }) == "plan.cached_keys.head");
  CHECK(fault([](auto& p) { p.cached_values.row = -1; }) == "plan.cached_values.row");
  CHECK(fault([](auto& p) { p.cached_values.head = -1; }) == "plan.cached_values.head");
  CHECK(fault([](auto& p) { p.placed_keys.row = 63; }) == "plan.placed_keys.row");
  CHECK(fault([](auto& p) { p.placed_keys.head = 0; }) == "plan.placed_keys.head");
  CHECK(fault([](auto& p) { p.placed_keys.page = 0; }) == "plan.placed_keys.page");
  CHECK(fault([](auto& p) { p.placed_values.row = 31; }) == "plan.placed_values.row");
  CHECK(fault([](auto& p) { p.placed_values.head = 31; }) == "plan.placed_values.head");
  CHECK(fault([](auto& p) { p.placed_values.page = -5; }) == "plan.placed_values.page");
  CHECK(fault([](auto& p) { p.spans = -1; }) == "plan.spans");
  CHECK(fault([](auto& p) { p.spans = std::int64_t{1} << 40; }) == "plan.spans");
  CHECK(fault([](auto& p) { p.rows = -1; }) == "plan.rows");
  CHECK(fault([](auto& p) { p.rows = std::int64_t{1} << 62; }) == "plan.rows");

  CHECK(rebase_keys(good, nullptr, {stream_ref{nullptr}}).argument() == std::string("ex.stream"));
  test_stream const stream;
  CHECK(rebase_keys(good, nullptr, {stream.get()}).argument() == std::string("spans"));
}

TEST_CASE("angles are laid out as cosines and then sines, and a room of another size is refused",
          "[cuda][rebase_keys]") {
  rotation const turn{{1.0f, 2.0f}, {3.0f, 4.0f}};
  std::vector<float> to(4);
  REQUIRE(write_angles(turn, to) == status::ok);
  CHECK(to == std::vector<float>{1.0f, 2.0f, 3.0f, 4.0f});
  CHECK(write_angles({}, {}) == status::ok);
  CHECK(write_angles(turn, std::span(to).first(3)) == status::invalid_shape);
  CHECK(write_angles({{1.0f}, {}}, to) == status::invalid_shape);
}
