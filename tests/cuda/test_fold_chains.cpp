// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/fold_chains.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "cuda/device.hpp"
#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

char const* name(kernel_path path) { return path == kernel_path::hopper ? "hopper" : "generic"; }

/// One run of one layer, in host memory: heads side by side.
struct run_values {
  std::vector<float> operators;
  std::vector<float> end_states;
};

/// A dense T of norm `decay`: a product of reflections, whose products keep their size.
std::vector<float> reflections(std::int64_t dim, double decay, std::mt19937_64& random) {
  auto const n = to_index(dim);
  std::normal_distribution<double> normal;
  std::vector<double> t(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) t[i * n + i] = decay;
  std::vector<double> k(n);
  for (int turn = 0; turn < 5; ++turn) {
    double square = 0.0;
    for (auto& x : k) {
      x = normal(random);
      square += x * x;
    }
    for (std::size_t c = 0; c < n; ++c) {
      double dot = 0.0;
      for (std::size_t r = 0; r < n; ++r) dot += k[r] * t[r * n + c];
      for (std::size_t r = 0; r < n; ++r) t[r * n + c] -= 2.0 * dot * k[r] / square;
    }
  }
  return {t.begin(), t.end()};
}

run_values random_run(operator_form form, state_dims const& dims, std::mt19937_64& random, double decay = 0.99) {
  run_values run;
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> log_decay(-0.5f, 0.0f);
  for (std::int64_t h = 0; h < dims.value_heads; ++h) {
    if (form == operator_form::dense) {
      auto const t = reflections(dims.key_dim, decay, random);
      run.operators.insert(run.operators.end(), t.begin(), t.end());
    } else {
      for (std::int64_t e = 0; e < operator_elements(form, dims.key_dim); ++e)
        run.operators.push_back(log_decay(random));
    }
  }
  for (std::int64_t i = 0; i < dims.value_heads * dims.state_elements(); ++i) run.end_states.push_back(normal(random));
  return run;
}

/// X <- T X + S0 of one head in fp64, T always as a matrix.
struct reference {
  std::vector<double> state, op;

  reference(state_dims const& dims, std::vector<double> initial) : state(std::move(initial)) {
    auto const n = to_index(dims.key_dim);
    op.assign(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) op[i * n + i] = 1.0;
  }
  void step(operator_form form, state_dims const& dims, run_values const& run, std::int64_t head) {
    auto const n = to_index(dims.key_dim), v = to_index(dims.value_dim);
    auto const elements = to_index(operator_elements(form, dims.key_dim));
    auto const* const stored = run.operators.data() + to_index(head) * elements;
    std::vector<double> t(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      if (form == operator_form::dense)
        for (std::size_t j = 0; j < n; ++j) t[i * n + j] = static_cast<double>(stored[i * n + j]);
      else
        t[i * n + i] = std::exp(static_cast<double>(stored[form == operator_form::scalar ? 0 : i]));
    }
    op = oracle::product(t, op, n, n, n);
    state = oracle::product(t, state, n, n, v);
    for (std::size_t i = 0; i < n * v; ++i) state[i] += static_cast<double>(run.end_states[to_index(head) * n * v + i]);
  }
};

/// Chains on the device, their tables and all that these point to.
struct device_chains {
  chain_plan plan;
  std::vector<std::vector<run_values>> values;  // [chains][runs]
  std::vector<std::vector<float>> initials;     // [chains], empty: zero
  std::size_t misalignment = 0;
  bool wants_prefixes = false;

  std::vector<device_array<float>> memory;
  std::vector<device_array<float>> states, operators;
  std::vector<device_array<float>> prefix_states, prefix_operators;
  device_array<chain> chains;
  device_array<chain_run> runs;
  device_array<chain_prefix> prefixes;
  device_array<std::uint32_t> flags;

  float* upload(std::vector<float> const& from) {
    memory.emplace_back(from, misalignment);
    return memory.back().data();
  }
  std::size_t operator_floats() const {
    return to_index(plan.dims.value_heads * operator_elements(plan.form, plan.dims.key_dim));
  }
  std::size_t state_floats() const { return to_index(plan.dims.value_heads * plan.dims.state_elements()); }

  void make() {
    std::vector<chain> all;
    std::vector<chain_run> table;
    std::vector<chain_prefix> after;
    for (std::size_t c = 0; c < values.size(); ++c) {
      states.emplace_back(state_floats(), misalignment);
      operators.emplace_back(operator_floats(), misalignment);
      all.push_back({.first_run = static_cast<std::int64_t>(table.size()),
                     .runs = static_cast<std::int64_t>(values[c].size()),
                     .initial = initials[c].empty() ? nullptr : upload(initials[c]),
                     .state = states.back().data(),
                     .operators = plan.composes ? operators.back().data() : nullptr});
      for (auto const& run : values[c]) {
        table.push_back({upload(run.operators), nullptr, upload(run.end_states)});
        if (!wants_prefixes) continue;
        prefix_states.emplace_back(state_floats());
        prefix_operators.emplace_back(operator_floats());
        after.push_back({prefix_operators.back().data(), prefix_states.back().data()});
      }
    }
    table.push_back({});  // a table that is not null, also where there are no runs
    chains = device_array<chain>(all);
    runs = device_array<chain_run>(table);
    prefixes = device_array<chain_prefix>(after);
    flags = device_array<std::uint32_t>(std::vector<std::uint32_t>(all.size()));
  }
  chain_tables tables() const {
    return {chains.data(), runs.data(), wants_prefixes ? prefixes.data() : nullptr, flags.data()};
  }
};

device_chains random_chains(operator_form form, state_dims const& dims, std::vector<std::size_t> const& lengths,
                            std::uint64_t seed, bool composes = true, bool with_initials = true) {
  device_chains made;
  made.plan = plan_chains(form, dims, static_cast<std::int64_t>(lengths.size()), composes);
  std::mt19937_64 random(seed);
  for (std::size_t c = 0; c < lengths.size(); ++c) {
    made.values.emplace_back();
    for (std::size_t i = 0; i < lengths[c]; ++i) made.values.back().push_back(random_run(form, dims, random));
    made.initials.push_back(with_initials && c % 2 == 0 ? random_states(dims, seed + c) : std::vector<float>{});
  }
  return made;
}

double operator_excess_of(operator_form form, state_dims const& dims, std::vector<float> const& found,
                          std::int64_t head, std::vector<double> const& wanted) {
  auto const elements = to_index(operator_elements(form, dims.key_dim));
  auto const first = found.begin() + static_cast<std::ptrdiff_t>(to_index(head) * elements);
  return operator_excess(form, dims.key_dim, {first, first + static_cast<std::ptrdiff_t>(elements)}, wanted);
}

double state_error_of(state_dims const& dims, std::vector<float> const& found, std::int64_t head,
                      std::vector<double> const& wanted) {
  auto const n = to_index(dims.state_elements());
  auto const first = found.begin() + static_cast<std::ptrdiff_t>(to_index(head) * n);
  return relative_error({first, first + static_cast<std::ptrdiff_t>(n)}, wanted);
}

/// Everything that a call wrote against fp64.
void check_against_fp64(device_chains const& of) {
  auto const& [form, dims] = std::pair{of.plan.form, of.plan.dims};
  std::size_t first_run = 0;
  for (std::size_t c = 0; c < of.values.size(); ++c) {
    auto const state = of.states[c].get();
    auto const op = of.operators[c].get();
    for (std::int64_t h = 0; h < dims.value_heads; ++h) {
      CAPTURE(c, h, of.values[c].size());
      auto const n = to_index(dims.state_elements());
      std::vector<double> initial(n, 0.0);
      for (std::size_t i = 0; i < n && !of.initials[c].empty(); ++i)
        initial[i] = static_cast<double>(of.initials[c][to_index(h) * n + i]);
      reference wanted(dims, initial);
      for (std::size_t i = 0; i < of.values[c].size(); ++i) {
        wanted.step(form, dims, of.values[c][i], h);
        if (!of.wants_prefixes) continue;
        CAPTURE(i);
        CHECK(state_error_of(dims, of.prefix_states[first_run + i].get(), h, wanted.state) <= 1e-5);
        CHECK(operator_excess_of(form, dims, of.prefix_operators[first_run + i].get(), h, wanted.op) <= 1.0);
      }
      CHECK(state_error_of(dims, state, h, wanted.state) <= 1e-5);
      if (of.plan.composes) CHECK(operator_excess_of(form, dims, op, h, wanted.op) <= 1.0);
    }
    first_run += of.values[c].size();
  }
  for (auto const flag : of.flags.get()) CHECK(flag == 0u);
}

/// Runs a call on a path; where the path has no kernel for the shape, says so and runs nothing.
bool run(device_chains const& of, kernel_path path) {
  test_stream const stream;
  auto const outcome = fold_chains(of.plan, of.tables(), {.stream = stream.get(), .path = path});
  if (path == kernel_path::hopper && outcome == status::unsupported) return false;
  REQUIRE(outcome == status::ok);
  stream.wait();
  return true;
}

}  // namespace

TEST_CASE("chains give the fp64 state, operator and prefixes, for every form, shape and path", "[cuda][fold_chains]") {
  auto const form = GENERATE(operator_form::scalar, operator_form::diagonal, operator_form::dense);
  auto const dims = GENERATE(state_dims{1, 1, 5, 3}, state_dims{1, 2, 16, 24}, state_dims{1, 1, 64, 64},
                             state_dims{1, 2, 128, 128}, state_dims{1, 1, 128, 64}, state_dims{1, 1, 200, 136});
  for (auto const path : kernel_paths()) {
    CAPTURE(name(path), static_cast<int>(form), dims.key_dim, dims.value_dim);
    auto chains = random_chains(form, dims, {0, 1, 2, 7}, 3);
    chains.wants_prefixes = true;
    chains.make();
    if (run(chains, path)) check_against_fp64(chains);
  }
}

TEST_CASE("64 runs with |T| near 1 stay within 1e-5", "[cuda][fold_chains]") {
  auto const composes = GENERATE(false, true);
  for (auto const path : kernel_paths()) {
    CAPTURE(name(path), composes);
    auto chains = random_chains(operator_form::dense, {1, 1, 128, 128}, {64, 64}, 5, composes);
    chains.make();
    REQUIRE(run(chains, path));
    check_against_fp64(chains);
  }
}

TEST_CASE("operands may start at any element, and states lie by any strides", "[cuda][fold_chains]") {
  auto const form = GENERATE(operator_form::scalar, operator_form::dense);
  state_dims const dims{1, 2, 128, 128};
  for (auto const path : kernel_paths()) {
    CAPTURE(name(path));
    auto packed = random_chains(form, dims, {3}, 7);
    packed.make();
    REQUIRE(run(packed, path));
    auto shifted = random_chains(form, dims, {3}, 7);
    shifted.misalignment = sizeof(float);
    shifted.make();
    REQUIRE(run(shifted, path));
    CHECK(same_bits(packed.states[0].get(), shifted.states[0].get()));
    CHECK(same_bits(packed.operators[0].get(), shifted.operators[0].get()));

    auto transposed = random_chains(form, dims, {3}, 7);
    transposed.plan.states = {dims.state_elements(), 1, dims.key_dim};
    auto& initial = transposed.initials[0];
    auto const straight = initial;
    auto const at = [&](std::size_t h, std::size_t k, std::size_t v) { return (h * 128 + k) * 128 + v; };
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t k = 0; k < 128; ++k)
        for (std::size_t v = 0; v < 128; ++v) initial[at(h, v, k)] = straight[at(h, k, v)];
    transposed.make();
    REQUIRE(run(transposed, path));
    auto const found = transposed.states[0].get();
    auto const wanted = packed.states[0].get();
    std::size_t wrong = 0;
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t k = 0; k < 128; ++k)
        for (std::size_t v = 0; v < 128; ++v) wrong += found[at(h, v, k)] != wanted[at(h, k, v)] ? 1u : 0u;
    CHECK(wrong == 0);
  }
}

TEST_CASE("a chain has the same bits alone, in any batch and on every run", "[cuda][fold_chains][case-08]") {
  auto const form = GENERATE(operator_form::diagonal, operator_form::dense);
  state_dims const dims{1, 2, 128, 128};
  for (auto const path : kernel_paths()) {
    CAPTURE(name(path));
    auto alone = random_chains(form, dims, {4}, 11);
    alone.make();
    REQUIRE(run(alone, path));
    auto const state = alone.states[0].get();
    auto const op = alone.operators[0].get();
    for (int i = 0; i < 20; ++i) {
      alone.states[0].poison();
      REQUIRE(run(alone, path));
      REQUIRE(same_bits(alone.states[0].get(), state));
    }
    for (std::size_t const batch : {2u, 7u, 64u}) {
      std::vector<std::size_t> lengths{4};
      for (std::size_t i = 1; i < batch; ++i) lengths.push_back(i % 6);
      auto many = random_chains(form, dims, lengths, 11);
      many.make();
      REQUIRE(run(many, path));
      CAPTURE(batch);
      CHECK(same_bits(many.states[0].get(), state));
      CHECK(same_bits(many.operators[0].get(), op));
    }
  }
}

TEST_CASE("a captured call is one kernel, and serves other chains when replayed", "[cuda][fold_chains]") {
  auto const form = GENERATE(operator_form::scalar, operator_form::dense);
  state_dims const dims{1, 1, 128, 128};
  for (auto const path : kernel_paths()) {
    CAPTURE(name(path));
    auto first = random_chains(form, dims, {3, 2}, 13);
    first.make();
    auto second = random_chains(form, dims, {5, 0}, 17);
    second.make();
    test_stream const stream;
    captured_graph const graph(stream, [&] {
      REQUIRE(fold_chains(first.plan, first.tables(), {.stream = stream.get(), .path = path}) == status::ok);
    });
    CHECK(graph.kernels() == 1);
    CHECK(graph.nodes() == 1);
    graph.replay();
    check_against_fp64(first);
    first.chains.set(second.chains.get());
    first.runs.set(second.runs.get());
    graph.replay();
    // The second's chains name the second's memory: it alone is written.
    check_against_fp64(second);
  }
}

TEST_CASE("whatever is not finite is flagged, in its chain alone", "[cuda][fold_chains]") {
  auto const form = GENERATE(operator_form::scalar, operator_form::diagonal, operator_form::dense);
  auto const bad = GENERATE(quiet_nan, infinity);
  auto const where = GENERATE(0, 1, 2);
  state_dims const dims{1, 1, 128, 128};
  for (auto const path : kernel_paths()) {
    CAPTURE(name(path), bad, where);
    auto chains = random_chains(form, dims, {3, 3, 3}, 19);
    auto& run_1 = chains.values[1][1];
    if (where == 0) run_1.operators.back() = bad;
    if (where == 1) run_1.end_states[77] = bad;
    if (where == 2) chains.initials[1] = random_states(dims, 1), chains.initials[1][300] = bad;
    chains.make();
    REQUIRE(run(chains, path));
    auto const flags = chains.flags.get();
    CHECK(flags[0] == 0u);
    CHECK((flags[1] & value_flag::non_finite) != 0u);
    CHECK(flags[2] == 0u);
  }
}

TEST_CASE("a log decay of -inf resets, and a positive one is flagged", "[cuda][fold_chains][case-03]") {
  auto const form = GENERATE(operator_form::scalar, operator_form::diagonal);
  state_dims const dims{1, 1, 8, 8};
  auto chains = random_chains(form, dims, {2, 2}, 23);
  chains.values[0][1].operators[0] = -infinity;
  chains.values[1][0].operators[0] = 0.25f;
  chains.make();
  REQUIRE(run(chains, kernel_path::generic));
  auto const flags = chains.flags.get();
  CHECK(flags[0] == 0u);
  CHECK(flags[1] == value_flag::gate_out_of_range);
  CHECK(chains.operators[0].get()[0] == -infinity);
  auto const state = chains.states[0].get();
  for (std::size_t v = 0; v < 8; ++v) CHECK(state[v] == chains.values[0][1].end_states[v]);
}

TEST_CASE("operators stored in f16 under a power of two are read exactly", "[cuda][fold_chains]") {
  state_dims const dims{1, 2, 64, 32};
  auto whole = random_chains(operator_form::dense, dims, {3}, 29);
  std::vector<std::vector<std::uint16_t>> halves;
  for (auto& run : whole.values[0]) {
    halves.emplace_back();
    for (auto& t : run.operators) {
      // A multiple of 2^-8 below 4: exact in half precision, and 2^-3 of it as well.
      t = std::round(t * 256.0f) / 256.0f;
      float const stored = t * 8.0f;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &stored, sizeof bits);
      auto const exponent = static_cast<int>(bits >> 23 & 0xffu) - 127 + 15;
      halves.back().push_back(static_cast<std::uint16_t>(
          stored == 0.0f
              ? 0u
              : (bits >> 16 & 0x8000u) | static_cast<std::uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ffu)));
    }
  }
  whole.make();
  REQUIRE(run(whole, kernel_path::generic));

  auto stored = random_chains(operator_form::dense, dims, {3}, 29);
  stored.values = whole.values;
  stored.plan.stored = dtype::f16;
  stored.make();
  auto table = stored.runs.get();
  std::vector<device_array<std::uint16_t>> memory;
  device_array<std::int32_t> const exponents(std::vector<std::int32_t>{-3, -3});
  for (std::size_t i = 0; i < 3; ++i) {
    memory.emplace_back(halves[i]);
    table[i].operators = memory.back().data();
    table[i].operator_exponents = exponents.data();
  }
  stored.runs.set(table);
  REQUIRE(run(stored, kernel_path::generic));
  CHECK(same_bits(stored.states[0].get(), whole.states[0].get()));
  CHECK(same_bits(stored.operators[0].get(), whole.operators[0].get()));
}

TEST_CASE("a plan that cannot be served is refused before work is queued", "[cuda][fold_chains]") {
  test_stream const stream;
  device_exec const ex{.stream = stream.get()};
  auto const good = plan_chains(operator_form::dense, {1, 1, 16, 16}, 1, false);
  CHECK(fold_chains(good, {}, {stream_ref{nullptr}}) == status::invalid_argument);
  CHECK(fold_chains(good, {}, ex) == status::invalid_argument);
  CHECK(fold_chains(plan_chains(operator_form::dense, {1, 1, 16, 16}, 0, false), {}, ex) == status::ok);
  CHECK(validate(plan_chains(operator_form::dense, {1, 1, 257, 16}, 1, false)) == status::unsupported);
  CHECK(validate(plan_chains(operator_form::dense, {1, 1, 16, 0}, 1, false)) == status::invalid_shape);
  CHECK(validate(plan_chains(operator_form::dense, {1, 1, 16, 16}, -1, false)) == status::invalid_shape);
  CHECK(validate(plan_chains(operator_form::dense, {1, 1, 16, 16}, std::int64_t{1} << 40, false)) ==
        status::unsupported);
  auto overlapping = good;
  overlapping.end_state_head_stride = 255;
  CHECK(validate(overlapping) == status::invalid_shape);
  auto stored = plan_chains(operator_form::diagonal, {1, 1, 16, 16}, 1, false);
  stored.stored = dtype::f16;
  CHECK(validate(stored) == status::unsupported);
}
