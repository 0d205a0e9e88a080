// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/continue_tails.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "hypic/algebra/tail.hpp"
#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

/// How the tails of a call lie in memory.
struct tail_layout {
  std::int64_t tail_rows = 3;
  std::int64_t channels = 36;
  std::int64_t groups = 1;
  std::int64_t gap = 0;  ///< elements after each row
};

/// Chains of one call with their memory, and what the host's `continue_tail` makes of them. Elements are small whole
/// numbers, which every type has, or at least the bits of one.
template <class Element>
class tail_call {
 public:
  static constexpr dtype type = sizeof(Element) == 4 ? dtype::f32 : dtype::bf16;

  explicit tail_call(tail_layout const& how, std::int64_t chains, std::int64_t slots, std::uint64_t seed = 1)
      : how_(how), random_(seed) {
    plan = plan_tails(type, how.tail_rows, how.channels, slots, chains);
    auto const row = how.channels + how.gap;
    plan.raw_row = plan.tails_row = plan.pool_row = row;
    plan.tails_span = how.tail_rows * row + how.gap;
    plan.pool_slot = how.tail_rows * row + 2 * how.gap;
    plan.groups = how.groups;
    plan.cached_row = how.channels / how.groups + how.gap;
    plan.cached_group = how.tail_rows * plan.cached_row;
    pool_ = numbers(slots * plan.pool_slot);
  }

  tail_plan plan;

  /// A span of so many tokens, of which the first `rows` are forwarded.
  void add_span(std::int64_t tokens, std::int64_t rows) {
    auto const kept = std::min(how_.tail_rows, tokens);
    cached_.push_back(numbers(how_.groups * plan.cached_group));
    if (rows == tokens) cached_.back().clear();
    spans_.push_back({tokens, raw_rows_, rows, nullptr});
    raw_rows_ += rows;
    kept_.push_back(kept);
  }
  /// The spans since the last chain.
  void add_chain(std::int32_t initial, std::int32_t final_slot) {
    auto const first = chains_.empty() ? 0 : chains_.back().first_span + chains_.back().spans;
    chains_.push_back({first, static_cast<std::int64_t>(spans_.size()) - first, initial, final_slot});
  }
  /// Uploads everything; no spans after this.
  void upload() {
    REQUIRE(plan.chains == static_cast<std::int64_t>(chains_.size()));
    raw_ = numbers((raw_rows_ + 1) * plan.raw_row);
    device_raw_ = device_array<Element>(raw_);
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      device_cached_.emplace_back(cached_[i]);
      spans_[i].cached = cached_[i].empty() ? nullptr : device_cached_.back().data();
    }
    device_spans_ = device_array<tail_span>(spans_);
    device_chains_ = device_array<tail_chain>(chains_);
    device_pool_ = device_array<Element>(pool_);
    device_tails_ = device_array<Element>(spans_.size() * to_index(plan.tails_span));
  }
  void reset() const {
    device_pool_.set(pool_);
    device_tails_.poison();
  }

  tail_tables tables() const {
    return {device_chains_.data(), device_spans_.data(), device_raw_.data(), device_pool_.data(), device_tails_.data()};
  }
  status queue(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    return continue_tails(plan, tables(), {.stream = stream.get(), .path = path});
  }
  void run(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    reset();
    REQUIRE(queue(stream, path) == status::ok);
    stream.wait();
  }
  /// Makes this call's tables hold what another's do; their sizes are equal.
  void adopt(tail_call const& other) const {
    device_chains_.set(other.chains_);
    device_spans_.set(other.spans_);
    device_raw_.set(other.raw_);
    device_pool_.set(other.pool_);
    device_tails_.poison();
  }

  std::vector<Element> pool() const { return device_pool_.get(); }
  bool no_tails() const { return same(device_tails_.get(), poisoned_tails()); }
  /// Tails and pool, whole images with their gaps, are what the host makes.
  bool right() const { return right_for(*this); }
  /// The same, for what was adopted.
  bool right_for(tail_call const& other) const {
    auto tails = poisoned_tails();
    auto pool = other.pool_;
    other.walk(tails, pool);
    return same(device_tails_.get(), tails) && same(device_pool_.get(), pool);
  }

 private:
  static bool same(std::vector<Element> const& left, std::vector<Element> const& right) {
    return left.size() == right.size() &&
           (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(Element)) == 0);
  }
  std::vector<Element> poisoned_tails() const {
    std::vector<Element> image(spans_.size() * to_index(plan.tails_span));
    if (!image.empty()) std::memset(image.data(), 0xff, image.size() * sizeof(Element));
    return image;
  }
  std::vector<Element> numbers(std::int64_t elements) {
    std::vector<Element> made(to_index(elements));
    std::uniform_int_distribution<int> number(1, 60'000);
    for (auto& x : made) x = static_cast<Element>(number(random_));
    return made;
  }

  /// Rows as the host's operation takes them.
  tensor<2> rows_at(std::vector<Element> const& image, std::int64_t first, std::int64_t stride,
                    std::int64_t rows) const {
    tensor<2> out({rows, how_.channels});
    for_each_element(out.view(), [&](float& x, std::int64_t i) {
      x = static_cast<float>(image[to_index(first + i / how_.channels * stride + i % how_.channels)]);
    });
    return out;
  }
  tensor<2> cached_rows(std::size_t span) const {
    tensor<2> out({cached_[span].empty() ? 0 : kept_[span], how_.channels});
    auto const width = how_.channels / how_.groups;
    for_each_element(out.view(), [&](float& x, std::int64_t i) {
      auto const channel = i % how_.channels;
      x = static_cast<float>(cached_[span][to_index(i / how_.channels * plan.cached_row +
                                                    channel / width * plan.cached_group + channel % width)]);
    });
    return out;
  }
  void put(tensor<2> const& tail, std::vector<Element>& image, std::int64_t first, std::int64_t stride) const {
    auto const packed = tail.packed();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(packed.size()); ++i)
      image[to_index(first + i / how_.channels * stride + i % how_.channels)] =
          static_cast<Element>(packed[to_index(i)]);
  }

  void walk(std::vector<Element>& tails, std::vector<Element>& pool) const {
    for (auto const& through : chains_) {
      auto const is_slot = [&](std::int64_t slot) { return slot >= -1 && slot < plan.slots; };
      if (!is_slot(through.initial_slot) || !is_slot(through.final_slot)) continue;
      tensor<2> tail({how_.tail_rows, how_.channels});
      tail.fill(0.0f);
      if (through.initial_slot >= 0)
        tail = rows_at(pool, through.initial_slot * plan.pool_slot, plan.pool_row, how_.tail_rows);
      for (auto span = through.first_span; span < through.first_span + through.spans; ++span) {
        auto const& of = spans_[to_index(span)];
        put(tail, tails, span * plan.tails_span, plan.tails_row);
        tensor<2> next({how_.tail_rows, how_.channels});
        auto const fresh = rows_at(raw_, of.first_row * plan.raw_row, plan.raw_row, of.rows);
        auto const cached = cached_rows(to_index(span));
        auto const given = cached_[to_index(span)].empty() ? tensor_view<float const, 2>{} : cached.view();
        REQUIRE(continue_tail(tail.view(), of.tokens, fresh.view(), given, next.view()) == status::ok);
        tail = next;
      }
      if (through.final_slot >= 0) put(tail, pool, through.final_slot * plan.pool_slot, plan.pool_row);
    }
  }

  tail_layout how_;
  std::mt19937_64 random_;
  std::int64_t raw_rows_ = 0;
  std::vector<tail_span> spans_;
  std::vector<std::int64_t> kept_;
  std::vector<tail_chain> chains_;
  std::vector<Element> raw_, pool_;
  std::vector<std::vector<Element>> cached_;
  std::vector<device_array<Element>> device_cached_;
  device_array<Element> device_raw_, device_pool_, device_tails_;
  device_array<tail_span> device_spans_;
  device_array<tail_chain> device_chains_;
};

/// Every chain of three spans of 0 to 5 tokens, forwarded in part and whole. Slot i is the i-th chain's, and another one
/// past those of all chains.
template <class Element>
tail_call<Element> all_short_chains(tail_layout const& how, std::uint64_t seed = 1) {
  constexpr std::int32_t chains = 6 * 6 * 6;
  tail_call<Element> call(how, chains, 2 * chains, seed);
  for (std::int32_t i = 0; i < chains; ++i) {
    for (std::int64_t rest = i, span = 0; span < 3; rest /= 6, ++span) {
      auto const tokens = rest % 6;
      call.add_span(tokens, (i / 7 + span) % (tokens + 1));
    }
    // From zeros, from a slot of its own, and on in the slot where it began; with and without an end.
    std::int32_t const initial = i % 3 == 0 ? -1 : i;
    std::int32_t const final_slot = i % 4 == 3 ? -1 : i % 3 == 1 ? i : chains + i;
    call.add_chain(initial, final_slot);
  }
  call.upload();
  return call;
}

}  // namespace

TEST_CASE("tails of all chains of spans of 0 to 5 tokens are the bits that the host makes, and nothing else is written",
          "[cuda][continue_tails][case-13][case-17]") {
  test_stream const stream;
  for (std::int64_t const tail_rows : {1, 3, 6}) {
    for (std::int64_t const groups : {1, 3}) {
      for (std::int64_t const gap : {0, 5}) {
        for (std::int64_t const channels : {36, 3, 66}) {
          CAPTURE(tail_rows, groups, gap, channels);
          auto const call = all_short_chains<float>({tail_rows, channels, groups, gap});
          call.run(stream);
          CHECK(call.right());
        }
      }
    }
  }
  auto const call = all_short_chains<std::uint16_t>({3, 36, 3, 1});
  call.run(stream);
  CHECK(call.right());
}

TEST_CASE("a chain without spans hands its initial tail on, and -1 takes or leaves none",
          "[cuda][continue_tails][case-14]") {
  test_stream const stream;
  tail_call<float> call({}, 4, 8);
  call.add_chain(2, 5);
  call.add_chain(-1, 6);
  call.add_chain(3, -1);
  call.add_chain(4, 4);
  call.upload();
  call.run(stream);
  CHECK(call.right());
}

TEST_CASE("a chain with a slot out of range is skipped whole", "[cuda][continue_tails][case-14]") {
  test_stream const stream;
  tail_call<float> call({}, 6, 4);
  std::vector<std::pair<std::int32_t, std::int32_t>> const slots{{4, 0},  {0, 4}, {-2, 1},
                                                                 {1, -2}, {2, 2}, {1 << 30, 3}};
  for (auto const& [initial, final_slot] : slots) {
    call.add_span(2, 1);
    call.add_span(4, 4);
    call.add_chain(initial, final_slot);
  }
  call.upload();
  call.run(stream);
  CHECK(call.right());
}

TEST_CASE("tails of long chains are the host's bits on each path, in each run, and in batches of 1, 7 and 64",
          "[cuda][continue_tails]") {
  test_stream const stream;
  auto const made = [](std::int32_t chains) {
    tail_call<float> call({3, 100, 1, 0}, chains, chains);
    for (std::int32_t i = 0; i < chains; ++i) {
      for (std::int64_t span = 0; span < 65; ++span) call.add_span(span % 7, span % 7);
      call.add_chain(-1, i);
    }
    call.upload();
    return call;
  };
  for (std::int32_t const chains : {1, 7, 64}) {
    auto const call = made(chains);
    for (auto const path : kernel_paths()) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        call.run(stream, path);
        CHECK(call.right());
      }
    }
  }
}

TEST_CASE("a captured continuation is one kernel, and replayed it serves other chains and rows",
          "[cuda][continue_tails][case-17]") {
  test_stream const stream;
  tail_layout const how{3, 40, 1, 2};
  auto const made = [&](std::int64_t tokens, std::uint64_t seed) {
    tail_call<float> call(how, 2, 2, seed);
    call.add_span(tokens, 2);
    call.add_span(5 - tokens + 2, 3);
    call.add_chain(0, 0);
    call.add_span(2, 1);
    call.add_span(tokens, 0);
    call.add_chain(-1, 1);
    call.upload();
    return call;
  };
  auto const call = made(2, 1);
  auto const next = made(4, 2);
  captured_graph const graph(stream, [&] { REQUIRE(call.queue(stream) == status::ok); });
  CHECK(graph.kernels() == 1);
  CHECK(graph.nodes() == 1);
  for (int repeat = 0; repeat < 2; ++repeat) {
    call.adopt(call);
    graph.replay();
    CHECK(call.right());
    call.adopt(next);
    graph.replay();
    CHECK(call.right_for(next));
  }
}

TEST_CASE("final tails alone may be asked for", "[cuda][continue_tails]") {
  test_stream const stream;
  auto const call = all_short_chains<float>({});
  call.run(stream);
  auto const wanted = call.pool();
  call.reset();
  auto tables = call.tables();
  tables.tails = nullptr;
  REQUIRE(continue_tails(call.plan, tables, {stream.get()}) == status::ok);
  stream.wait();
  CHECK(call.pool() == wanted);
  CHECK(call.no_tails());
}

TEST_CASE("no chains, and convolutions of length 1, queue nothing", "[cuda][continue_tails]") {
  test_stream const stream;
  CHECK(continue_tails(plan_tails(dtype::f32, 3, 8, 4, 0), {}, {stream.get()}) == status::ok);
  CHECK(continue_tails(plan_tails(dtype::f32, 0, 8, 4, 5), {}, {stream.get()}) == status::ok);
}

TEST_CASE("misused plans of tails are refused by name before a kernel is queued", "[cuda][continue_tails]") {
  auto const good = plan_tails(dtype::f32, 3, 8, 4, 5);
  REQUIRE(validate(good) == status::ok);
  auto const fault = [&](auto const& spoil) -> std::string {
    auto plan = good;
    spoil(plan);
    auto const outcome = validate(plan);
    CHECK(outcome != status::ok);
    CHECK(continue_tails(plan, {}, {stream_ref{nullptr}}) == outcome);
    return outcome.argument();
  };
  constexpr auto huge = std::int64_t{1} << 40;
  CHECK(fault([](auto& p) { p.type = static_cast<dtype>(3); }) == "plan.type");
  CHECK(fault([](auto& p) { p.tail_rows = -1; }) == "plan.tail_rows");
  CHECK(fault([&](auto& p) { p.tail_rows = huge; }) == "plan.tail_rows");
  CHECK(fault([](auto& p) { p.channels = 0; }) == "plan.channels");
  CHECK(fault([&](auto& p) { p.channels = huge; }) == "plan.channels");
  CHECK(fault([](auto& p) { p.groups = 0; }) == "plan.groups");
  CHECK(fault([](auto& p) { p.groups = 3; }) == "plan.channels");
  CHECK(fault([](auto& p) { p.raw_row = -1; }) == "plan.raw_row");
  CHECK(fault([](auto& p) { p.cached_row = -1; }) == "plan.cached_row");
  CHECK(fault([](auto& p) { p.cached_group = -1; }) == "plan.cached_group");
  CHECK(fault([](auto& p) { p.tails_span = 7; }) == "plan.tails_span");
  CHECK(fault([](auto& p) { p.tails_row = 0; }) == "plan.tails_row");
  CHECK(fault([](auto& p) { p.pool_slot = 0; }) == "plan.pool_slot");
  CHECK(fault([](auto& p) { p.pool_row = 7; }) == "plan.pool_row");
  CHECK(fault([](auto& p) { p.slots = -1; }) == "plan.slots");
  CHECK(fault([&](auto& p) { p.slots = huge; }) == "plan.slots");
  CHECK(fault([](auto& p) { p.chains = -1; }) == "plan.chains");
  CHECK(fault([&](auto& p) { p.chains = huge; }) == "plan.chains");

  CHECK(continue_tails(good, {}, {stream_ref{nullptr}}).argument() == std::string("ex.stream"));
  test_stream const stream;
  device_array<float> const some(64);
  auto const missing = [&](auto const& spoil) -> std::string {
    auto* const any = some.data();
    tail_tables tables{reinterpret_cast<tail_chain const*>(any), reinterpret_cast<tail_span const*>(any), any, any,
                       any};
    spoil(tables);
    return continue_tails(good, tables, {stream.get()}).argument();
  };
  CHECK(missing([](auto& t) { t.chains = nullptr; }) == "tables.chains");
  CHECK(missing([](auto& t) { t.spans = nullptr; }) == "tables.spans");
  CHECK(missing([](auto& t) { t.raw = nullptr; }) == "tables.raw");
  CHECK(missing([](auto& t) { t.pool = nullptr; }) == "tables.pool");
}
