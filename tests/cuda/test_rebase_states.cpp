// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/rebase_states.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "hypic/cuda/angles.hpp"
#include "support/rotary_case.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int32_t heads = 3;
constexpr std::int32_t value_dim = 37;

state_dims dims_of(rotary_case const& one) { return {heads, heads, static_cast<std::int32_t>(one.dim), value_dim}; }

state_strides strides_of(state_dims const& dims, layout how) {
  std::int64_t const keys = dims.key_dim;
  std::int64_t const values = dims.value_dim;
  switch (how) {
    case layout::dense: break;
    case layout::gaps: return {keys * (values + 3) + 5, values + 3, 1};
    case layout::transposed: return {values * (keys + 3) + 5, 1, keys + 3};
  }
  return {keys * values, values, 1};
}

/// States of one call, the i-th moved by turns[i] positions.
class state_call {
 public:
  state_call(rotary_case const& one, layout in, layout out, std::vector<std::int64_t> const& turns,
             std::uint64_t seed = 1)
      : one_(one), turns_(turns) {
    auto const pairs = static_cast<std::int32_t>(one.rotary.frequencies.size());
    plan = plan_rebase_states(dims_of(one), pairs, one.rotary.pairing, static_cast<std::int64_t>(turns.size()));
    plan.in = strides_of(plan.dims, in);
    plan.out = strides_of(plan.dims, out);
    for (std::size_t i = 0; i < turns.size(); ++i) add(turns[i], seed + i);
    table_ = device_array<rebase_state>(states_);
  }

  rebase_states_plan plan;

  std::vector<rebase_state> const& states() const { return states_; }
  device_array<rebase_state> const& table() const { return table_; }
  /// From now on entries turn in place.
  void turn_in_place() {
    for (auto& state : states_) state.out = const_cast<float*>(state.in);  // NOLINT: it is this class's own memory
    table_.set(states_);
    outs_.swap(ins_);
  }
  void poison() const {
    for (auto const& out : outs_) out.poison();
  }
  status queue(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    return rebase_states(plan, table_.data(), {.stream = stream.get(), .path = path});
  }
  void run(test_stream const& stream, kernel_path path = kernel_path::automatic) const {
    REQUIRE(queue(stream, path) == status::ok);
    stream.wait();
  }

  /// [heads, Dk, Dv] packed.
  std::vector<float> found(std::size_t state) const { return packed(outs_[state].get(), plan.out); }
  /// Every state is turned right, and nothing but states was written.
  void check() const {
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      CAPTURE(i, turns_[i]);
      auto const after = found(i);
      CHECK(relative_error(columns(after), one_.turned(columns(before_[i]), static_cast<oracle::real>(turns_[i]))) <=
            2e-7);
      if (turns_[i] == 0) CHECK(same_bits(after, before_[i]));
      CHECK(gaps_intact(outs_[i].get()));
    }
  }
  void check_inputs_unchanged() const {
    for (std::size_t i = 0; i < turns_.size(); ++i) CHECK(same_bits(packed(ins_[i].get(), plan.in), before_[i]));
  }

 private:
  template <class Fn>
  void for_each(state_strides const& strides, Fn const& fn) const {
    std::size_t index = 0;
    for (std::int64_t h = 0; h < plan.dims.value_heads; ++h) {
      for (std::int64_t k = 0; k < plan.dims.key_dim; ++k) {
        for (std::int64_t v = 0; v < plan.dims.value_dim; ++v)
          fn(to_index(h * strides.head + k * strides.key + v * strides.value), index++);
      }
    }
  }
  std::vector<float> packed(std::vector<float> const& image, state_strides const& strides) const {
    std::vector<float> elements(to_index(plan.dims.value_heads * plan.dims.state_elements()));
    for_each(strides, [&](std::size_t at, std::size_t index) { elements[index] = image[at]; });
    return elements;
  }
  bool gaps_intact(std::vector<float> image) const {
    for_each(plan.out, [&](std::size_t at, std::size_t) { image[at] = quiet_nan; });
    return std::all_of(image.begin(), image.end(), [](float x) { return std::isnan(x); });
  }
  /// Columns of states one after the other: each is a vector of the key axis.
  std::vector<float> columns(std::vector<float> const& states) const {
    auto const keys = to_index(plan.dims.key_dim);
    auto const values = to_index(plan.dims.value_dim);
    std::vector<float> all;
    for (std::size_t h = 0; h < to_index(plan.dims.value_heads); ++h) {
      for (std::size_t v = 0; v < values; ++v) {
        for (std::size_t k = 0; k < keys; ++k) all.push_back(states[(h * keys + k) * values + v]);
      }
    }
    return all;
  }

  void add(std::int64_t positions, std::uint64_t seed) {
    auto const turn = make_rotation(one_.rotary, positions);
    std::vector<float> angles(2 * turn.cosine.size());
    REQUIRE(write_angles(turn, angles) == status::ok);
    angles_.emplace_back(angles);
    before_.push_back(random_states(plan.dims, seed));
    std::vector<float> image(to_index(plan.in.head * plan.dims.value_heads), quiet_nan);
    for_each(plan.in, [&](std::size_t at, std::size_t index) { image[at] = before_.back()[index]; });
    ins_.emplace_back(image);
    outs_.emplace_back(to_index(plan.out.head * plan.dims.value_heads));
    states_.push_back({ins_.back().data(), outs_.back().data(), turn.identity() ? nullptr : angles_.back().data()});
  }

  rotary_case one_;
  std::vector<std::int64_t> turns_;
  std::vector<device_array<float>> angles_, ins_, outs_;
  std::vector<std::vector<float>> before_;
  std::vector<rebase_state> states_;
  device_array<rebase_state> table_;
};

constexpr std::array<layout, 3> layouts{layout::dense, layout::gaps, layout::transposed};
std::vector<std::int64_t> mixed_turns() { return {1, 0, 4096, 1'000'000, -999'999}; }

}  // namespace

TEST_CASE(
    "states moved by the device equal the exact turn of their key axis to position 1e6, in any layout and in place",
    "[cuda][rebase_states][case-16][case-17]") {
  test_stream const stream;
  for (auto const& one : rotary_cases()) {
    for (auto const in : layouts) {
      for (auto const out : layouts) {
        CAPTURE(one.text, static_cast<int>(in), static_cast<int>(out));
        state_call const call(one, in, out, mixed_turns());
        call.run(stream);
        call.check();
        call.check_inputs_unchanged();
      }
      state_call in_place(one, in, in, mixed_turns());
      in_place.turn_in_place();
      in_place.run(stream);
      in_place.check();
    }
  }
}

TEST_CASE("moved states are the same bits in any layout, on each path, in each run, and in batches of 1, 7 and 64",
          "[cuda][rebase_states]") {
  test_stream const stream;
  for (auto const& one : {rotary_cases().front(), rotary_cases().back()}) {
    CAPTURE(one.text);
    auto const turns = [](std::size_t states) {
      std::vector<std::int64_t> all(states, 31);
      all.front() = 54'321;
      return all;
    };
    state_call const alone(one, layout::dense, layout::dense, turns(1));
    alone.run(stream);
    auto const wanted = alone.found(0);
    for (std::size_t const states : {7u, 64u}) {
      for (auto const how : layouts) {
        state_call const call(one, how, how, turns(states));
        for (auto const path : kernel_paths()) {
          for (int repeat = 0; repeat < 2; ++repeat) {
            call.poison();
            call.run(stream, path);
            CHECK(same_bits(call.found(0), wanted));
          }
        }
      }
    }
  }
}

TEST_CASE("a captured move of states is one kernel, and replayed it serves other states and turns",
          "[cuda][rebase_states][case-17]") {
  test_stream const stream;
  auto const one = rotary_cases().front();
  state_call const call(one, layout::gaps, layout::transposed, {1, 2, 3});
  state_call const next(one, layout::gaps, layout::transposed, {0, -7, 1'000'000}, 50);
  captured_graph const graph(stream, [&] { REQUIRE(call.queue(stream) == status::ok); });
  CHECK(graph.kernels() == 1);
  CHECK(graph.nodes() == 1);
  for (int repeat = 0; repeat < 2; ++repeat) {
    call.table().set(call.states());
    call.poison();
    graph.replay();
    call.check();
    call.table().set(next.states());
    next.poison();
    graph.replay();
    next.check();
  }
}

TEST_CASE("an entry without a state is skipped", "[cuda][rebase_states]") {
  test_stream const stream;
  state_call const call(rotary_cases().front(), layout::dense, layout::dense, {5, 6});
  auto states = call.states();
  states[0].in = nullptr;
  call.table().set(states);
  call.poison();
  call.run(stream);
  for (float const x : call.found(0)) REQUIRE(std::isnan(x));
  CHECK(all_finite(call.found(1)));
}

TEST_CASE("moving no states is fine", "[cuda][rebase_states]") {
  test_stream const stream;
  auto const plan = plan_rebase_states({1, 1, 8, 8}, 4, rotary_pairing::rotate_half, 0);
  CHECK(rebase_states(plan, nullptr, {stream.get()}) == status::ok);
}

TEST_CASE("misused plans of moved states are refused by name before a kernel is queued", "[cuda][rebase_states]") {
  auto const good = plan_rebase_states({2, 4, 64, 32}, 16, rotary_pairing::interleaved, 3);
  REQUIRE(validate(good) == status::ok);
  auto const fault = [&](auto const& spoil) -> std::string {
    auto plan = good;
    spoil(plan);
    auto const outcome = validate(plan);
    CHECK(outcome != status::ok);
    CHECK(rebase_states(plan, nullptr, {stream_ref{nullptr}}) == outcome);
    return outcome.argument();
  };
  CHECK(fault([](auto& p) { p.dims.key_dim = 0; }) == "dims.key_dim");
  CHECK(fault([](auto& p) { p.dims.value_heads = 3; }) == "dims.value_heads");
  CHECK(fault([](auto& p) { p.pairing = static_cast<rotary_pairing>(2); }) == "plan.pairing");
  CHECK(fault([](auto& p) { p.rotary_pairs = -1; }) == "plan.rotary_pairs");
  CHECK(fault([](auto& p) { p.rotary_pairs = 33; }) == "plan.rotary_pairs");
  CHECK(fault([](auto& p) { p.dims.key_dim = p.dims.value_dim = 1 << 20; }) == "plan.dims.value_dim");
  CHECK(fault([](auto& p) { p.in.head = -1; }) == "plan.in.head");
  CHECK(fault([](auto& p) { p.in.key = -1; }) == "plan.in.key");
  CHECK(fault([](auto& p) { p.in.value = -1; }) == "plan.in.value");
  CHECK(fault([](auto& p) { p.out.head = 0; }) == "plan.out.head");
  CHECK(fault([](auto& p) { p.out.key = 0; }) == "plan.out.key");
  CHECK(fault([](auto& p) { p.out.value = 0; }) == "plan.out.value");
  CHECK(fault([](auto& p) { p.states = -1; }) == "plan.states");
  CHECK(fault([](auto& p) { p.states = std::int64_t{1} << 40; }) == "plan.states");

  CHECK(rebase_states(good, nullptr, {stream_ref{nullptr}}).argument() == std::string("ex.stream"));
  test_stream const stream;
  CHECK(rebase_states(good, nullptr, {stream.get()}).argument() == std::string("states"));
}
