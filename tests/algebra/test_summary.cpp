// SPDX-License-Identifier: Apache-2.0
#include "hypic/algebra/summary.hpp"

#include <catch2/catch.hpp>

#include <vector>

#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

std::vector<state_dims> const shapes = {{1, 1, 5, 3}, {1, 2, 16, 24}, {2, 2, 64, 32}, {1, 1, 128, 128}};

// (T, S0) of every head in fp64, T always as a matrix.
struct reference {
  std::vector<std::vector<double>> t, s;
};

reference widen(operator_form form, state_dims const& dims, const_summary_view summary) {
  reference wide;
  std::size_t const n = to_index(dims.key_dim);
  for (std::int64_t h = 0; h < dims.value_heads; ++h) {
    std::vector<double> t(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (form == operator_form::dense) {
          t[i * n + j] = static_cast<double>(summary.operators(h, i * n + j));
        } else if (i == j) {
          t[i * n + j] = std::exp(static_cast<double>(summary.operators(h, form == operator_form::scalar ? 0 : i)));
        }
      }
    }
    auto const s = gather(summary.end_states[h]);
    wide.t.push_back(t);
    wide.s.emplace_back(s.begin(), s.end());
  }
  return wide;
}

reference after(state_dims const& dims, reference const& later, reference const& earlier) {
  reference out;
  std::size_t const dk = to_index(dims.key_dim), dv = to_index(dims.value_dim);
  for (std::size_t h = 0; h < later.t.size(); ++h) {
    out.t.push_back(oracle::product(later.t[h], earlier.t[h], dk, dk, dk));
    auto s = oracle::product(later.t[h], earlier.s[h], dk, dk, dv);
    for (std::size_t i = 0; i < s.size(); ++i) s[i] += later.s[h][i];
    out.s.push_back(std::move(s));
  }
  return out;
}

// Checks a summary against fp64 in the norms of the contract.
void check_equals(operator_form form, state_dims const& dims, const_summary_view found, reference const& wanted) {
  for (std::int64_t h = 0; h < dims.value_heads; ++h) {
    CAPTURE(h);
    std::vector<float> t(to_index(found.operators.extent[1]));
    for (std::size_t i = 0; i < t.size(); ++i) t[i] = found.operators(h, i);
    CHECK(operator_excess(form, dims.key_dim, t, wanted.t[to_index(h)]) <= 1.0);
    CHECK(relative_error(gather(found.end_states[h]), wanted.s[to_index(h)]) <= 1e-5);
  }
}

// The summary of a few random tokens, rounded from the oracle.
template <class F>
summary_data random_summary(state_dims const& dims, std::uint64_t seed, gate_kind gates = gate_kind::mixed,
                            beta_kind betas = beta_kind::uniform, layout how = layout::dense,
                            std::int64_t tokens = 12) {
  layer_inputs const in({.family = F::id, .dims = dims, .rows = tokens, .gates = gates, .betas = betas, .seed = seed});
  layer_oracle run(F::id, dims, {});
  for (std::int64_t t = 0; t < tokens; ++t) run.step(in.rows.view(), t);
  summary_data out(F::form, dims, how);
  run.round_into(out.view());
  return out;
}

template <class F>
summary_data composed(state_dims const& dims, const_summary_view later, const_summary_view earlier) {
  summary_data out(F::form, dims);
  REQUIRE(compose<F>(dims, later, earlier, out.view(), {}) == status::ok);
  return out;
}

// Many runs in one pair of tensors, as `fold` takes them.
struct runs_data {
  tensor<3> operators;
  tensor<4> end_states;
  runs_data(operator_form form, state_dims const& dims, std::int64_t runs, layout how = layout::dense)
      : operators({runs, dims.value_heads, operator_elements(form, dims.key_dim)}, how),
        end_states({runs, dims.value_heads, dims.key_dim, dims.value_dim}, how) {}
  summaries_view view() { return {operators.view(), end_states.view()}; }
  const_summaries_view view() const { return {operators.view(), end_states.view()}; }
  void set(std::int64_t run, summary_data const& from) {
    auto const t = from.operators.packed();
    auto const s = from.end_states.packed();
    for_each_element(operators.view()[run], [&](float& x, std::int64_t i) { x = t[to_index(i)]; });
    for_each_element(end_states.view()[run], [&](float& x, std::int64_t i) { x = s[to_index(i)]; });
  }
  std::vector<float> packed(std::int64_t run) const {
    auto all = gather(operators.view()[run]);
    auto const s = gather(end_states.view()[run]);
    all.insert(all.end(), s.begin(), s.end());
    return all;
  }
};

template <class F>
runs_data random_runs(state_dims const& dims, std::int64_t runs, std::uint64_t seed, gate_kind gates = gate_kind::mixed,
                      beta_kind betas = beta_kind::uniform, layout how = layout::dense) {
  runs_data all(F::form, dims, runs, how);
  for (std::int64_t i = 0; i < runs; ++i) {
    all.set(i, random_summary<F>(dims, seed + static_cast<std::uint64_t>(i), gates, betas));
  }
  return all;
}

template <class F>
status lend_and_fold(state_dims const& dims, const_summaries_view runs, summary_view out, summaries_view prefixes,
                     int threads = 1) {
  lent_scratch memory(prefixes.empty() ? fold_workspace_bytes(F::form, dims, threads) : 0);
  auto const outcome = fold<F>(dims, runs, out, prefixes, {.workspace = memory.span(), .threads = threads});
  CHECK(memory.guards_intact());
  return outcome;
}

TEMPLATE_TEST_CASE("The identity is neutral on both sides", "[algebra]", retnet, gla, gated_deltanet, kda) {
  for (auto const& dims : shapes) {
    summary_data neutral(TestType::form, dims);
    REQUIRE(set_identity<TestType>(dims, neutral.view(), {}) == status::ok);
    auto const wide = widen(TestType::form, dims, neutral.view());
    for (std::size_t i = 0; i < wide.t[0].size(); ++i) {
      REQUIRE(wide.t[0][i] == (i % to_index(dims.key_dim + 1) == 0 ? 1.0 : 0.0));
    }
    REQUIRE(neutral.end_states.packed() == std::vector<float>(neutral.end_states.packed().size(), 0.0f));

    auto const x = random_summary<TestType>(dims, 5);
    CHECK(composed<TestType>(dims, neutral.view(), x.view()).packed() == x.packed());
    CHECK(composed<TestType>(dims, x.view(), neutral.view()).packed() == x.packed());

    tensor<3> in({dims.value_heads, dims.key_dim, dims.value_dim}), out(in);
    auto const states = random_states(dims, 6);
    for_each_element(in.view(), [&](float& value, std::int64_t i) { value = states[to_index(i)]; });
    REQUIRE(apply<TestType>(dims, neutral.view(), in.view(), out.view(), {}) == status::ok);
    CHECK(out.packed() == states);
  }
}

TEMPLATE_TEST_CASE("Composition is associative and equals the product in fp64", "[algebra]", retnet, gla,
                   gated_deltanet, kda) {
  for (auto const& dims : shapes) {
    for (std::uint64_t seed = 10; seed < 14; ++seed) {
      CAPTURE(dims.key_dim, dims.value_dim, seed);
      auto const gates = seed % 2 == 0 ? gate_kind::mixed : gate_kind::slow;
      auto const first = random_summary<TestType>(dims, 3 * seed, gates);
      auto const second = random_summary<TestType>(dims, 3 * seed + 1, gates);
      auto const third = random_summary<TestType>(dims, 3 * seed + 2, gates);
      auto const left =
          composed<TestType>(dims, composed<TestType>(dims, third.view(), second.view()).view(), first.view());
      auto const right =
          composed<TestType>(dims, third.view(), composed<TestType>(dims, second.view(), first.view()).view());
      auto const wide = [&](summary_data const& x) { return widen(TestType::form, dims, x.view()); };
      auto const wanted = after(dims, wide(third), after(dims, wide(second), wide(first)));
      check_equals(TestType::form, dims, left.view(), wanted);
      check_equals(TestType::form, dims, right.view(), wanted);
    }
  }
}

TEMPLATE_TEST_CASE("Applying a composition is applying the later run after the earlier one", "[algebra]", retnet, gla,
                   gated_deltanet, kda) {
  for (auto const& dims : shapes) {
    for (std::uint64_t seed = 20; seed < 24; ++seed) {
      CAPTURE(dims.key_dim, dims.value_dim, seed);
      auto const earlier = random_summary<TestType>(dims, 2 * seed);
      auto const later = random_summary<TestType>(dims, 2 * seed + 1);
      tensor<3> in({dims.value_heads, dims.key_dim, dims.value_dim}), between(in), twice(in), once(in);
      auto const states = random_states(dims, seed);
      for_each_element(in.view(), [&](float& value, std::int64_t i) { value = states[to_index(i)]; });
      REQUIRE(apply<TestType>(dims, earlier.view(), in.view(), between.view(), {}) == status::ok);
      REQUIRE(apply<TestType>(dims, later.view(), between.view(), twice.view(), {}) == status::ok);
      auto const both = composed<TestType>(dims, later.view(), earlier.view());
      REQUIRE(apply<TestType>(dims, both.view(), in.view(), once.view(), {}) == status::ok);

      auto const wanted =
          after(dims, widen(TestType::form, dims, later.view()), widen(TestType::form, dims, earlier.view()));
      auto const dk = to_index(dims.key_dim), dv = to_index(dims.value_dim);
      for (std::int64_t h = 0; h < dims.value_heads; ++h) {
        auto const x = gather(in.view()[h]);
        auto s = oracle::product(wanted.t[to_index(h)], {x.begin(), x.end()}, dk, dk, dv);
        for (std::size_t i = 0; i < s.size(); ++i) s[i] += wanted.s[to_index(h)][i];
        CHECK(relative_error(gather(twice.view()[h]), s) <= 1e-5);
        CHECK(relative_error(gather(once.view()[h]), s) <= 1e-5);
      }
    }
  }
}

TEMPLATE_TEST_CASE("A run split at every position composes to the whole run", "[algebra]", retnet, gla, gated_deltanet,
                   kda) {
  state_dims const dims{1, 2, 16, 24};
  constexpr std::int64_t tokens = 40;
  for (auto const gates :
       {gate_kind::zero, gate_kind::slow, gate_kind::mixed, gate_kind::fast, gate_kind::steep, gate_kind::resets}) {
    for (auto const betas : {beta_kind::uniform, beta_kind::two, beta_kind::one}) {
      layer_inputs const in({.family = TestType::id,
                             .dims = dims,
                             .rows = tokens,
                             .keys = key_kind::correlated,
                             .gates = gates,
                             .betas = betas,
                             .seed = 31});
      layer_oracle whole(TestType::id, dims, {});
      for (std::int64_t t = 0; t < tokens; ++t) whole.step(in.rows.view(), t);
      for (std::int64_t split = 0; split <= tokens; ++split) {
        layer_oracle first(TestType::id, dims, {}), second(TestType::id, dims, {});
        for (std::int64_t t = 0; t < split; ++t) first.step(in.rows.view(), t);
        for (std::int64_t t = split; t < tokens; ++t) second.step(in.rows.view(), t);
        summary_data earlier(TestType::form, dims), later(TestType::form, dims);
        first.round_into(earlier.view());
        second.round_into(later.view());
        auto const both = composed<TestType>(dims, later.view(), earlier.view());
        INFO(in.spec.text() << ", split " << split);
        CHECK(operator_excess(TestType::form, dims.key_dim, std::as_const(both).view().operators, whole) <= 1.0);
        CHECK(state_error(std::as_const(both).view().end_states, whole) <= 1e-5);
      }
    }
  }
}

TEMPLATE_TEST_CASE("A fold is repeated composition, oldest first, with all its prefixes", "[algebra]", retnet, gla,
                   gated_deltanet, kda) {
  for (auto const& dims : {state_dims{1, 2, 16, 24}, state_dims{1, 1, 5, 3}, state_dims{1, 1, 40, 35}}) {
    for (std::int64_t const count : {1, 2, 3, 4, 5, 6, 7, 64}) {
      CAPTURE(dims.key_dim, count);
      auto const runs = random_runs<TestType>(dims, count, 40);
      std::vector<std::vector<float>> wanted;
      summary_data total(TestType::form, dims);
      for (std::int64_t i = 0; i < count; ++i) {
        if (i == 0) {
          REQUIRE(set_identity<TestType>(dims, total.view(), {}) == status::ok);
        }
        total = composed<TestType>(dims, runs.view()[i], total.view());
        wanted.push_back(total.packed());
      }
      summary_data out(TestType::form, dims), also(TestType::form, dims);
      runs_data prefixes(TestType::form, dims, count), alone(TestType::form, dims, count);
      REQUIRE(lend_and_fold<TestType>(dims, runs.view(), out.view(), {}) == status::ok);
      REQUIRE(lend_and_fold<TestType>(dims, runs.view(), also.view(), prefixes.view()) == status::ok);
      REQUIRE(lend_and_fold<TestType>(dims, runs.view(), {}, alone.view()) == status::ok);
      CHECK(out.packed() == wanted.back());
      CHECK(same_bits(also.packed(), out.packed()));
      for (std::int64_t i = 0; i < count; ++i) {
        CHECK(prefixes.packed(i) == wanted[to_index(i)]);
        CHECK(same_bits(alone.packed(i), prefixes.packed(i)));
      }
    }
  }
}

TEMPLATE_TEST_CASE("A fold of no runs is the identity", "[algebra][case-10]", retnet, gla, gated_deltanet, kda) {
  state_dims const dims{1, 2, 16, 24};
  summary_data neutral(TestType::form, dims), out(TestType::form, dims);
  REQUIRE(set_identity<TestType>(dims, neutral.view(), {}) == status::ok);
  runs_data const none(TestType::form, dims, 0);
  REQUIRE(lend_and_fold<TestType>(dims, none.view(), out.view(), {}) == status::ok);
  CHECK(out.packed() == neutral.packed());
}

TEMPLATE_TEST_CASE("Sixty-four runs whose operators keep lengths compose to 1e-5", "[algebra][case-15]", retnet, gla,
                   gated_deltanet, kda) {
  for (auto const& dims : {state_dims{1, 1, 16, 48}, state_dims{1, 1, 64, 32}, state_dims{1, 1, 128, 128}}) {
    for (auto const gates : {gate_kind::zero, gate_kind::slow}) {
      // b = 2 with unit keys reflects: every operator is a rotation times the decay.
      auto const runs = random_runs<TestType>(dims, 64, 50, gates, beta_kind::two);
      CAPTURE(dims.key_dim, name(gates));
      auto wanted = widen(TestType::form, dims, runs.view()[0]);
      for (std::int64_t i = 1; i < 64; ++i) wanted = after(dims, widen(TestType::form, dims, runs.view()[i]), wanted);
      double squares = 0.0;
      for (double const x : wanted.t[0]) squares += x * x;
      REQUIRE(std::sqrt(squares / dims.key_dim) > 0.2);

      summary_data out(TestType::form, dims);
      REQUIRE(lend_and_fold<TestType>(dims, runs.view(), out.view(), {}) == status::ok);
      check_equals(TestType::form, dims, out.view(), wanted);
    }
  }
}

TEMPLATE_TEST_CASE("A run with a reset forgets what came before, without a NaN", "[algebra][case-03]", retnet, gla,
                   gated_deltanet, kda) {
  state_dims const dims{1, 1, 16, 24};
  auto const earlier = random_summary<TestType>(dims, 60);
  auto later = random_summary<TestType>(dims, 61);
  // All channels reset; a dense operator is then zero.
  float const nothing = TestType::form == operator_form::dense ? 0.0f : -infinity;
  later.operators.fill(nothing);
  auto const both = composed<TestType>(dims, later.view(), earlier.view());
  CHECK(both.operators.packed() == later.operators.packed());
  CHECK(both.end_states.packed() == later.end_states.packed());

  // A reset before, and one on both sides.
  auto const reversed = composed<TestType>(dims, earlier.view(), later.view());
  CHECK(reversed.operators.packed() == later.operators.packed());
  CHECK(all_finite(reversed.end_states.packed()));
  CHECK(composed<TestType>(dims, later.view(), later.view()).packed() == later.packed());

  tensor<3> in({1, 16, 24}), out(in);
  in.fill(1e30f);
  REQUIRE(apply<TestType>(dims, later.view(), in.view(), out.view(), {}) == status::ok);
  CHECK(out.packed() == later.end_states.packed());
}

TEST_CASE("A reset channel clears its own row and leaves the others exact", "[algebra][case-03]") {
  state_dims const dims{1, 1, 8, 4};
  auto const earlier = random_summary<gla>(dims, 62);
  auto later = random_summary<gla>(dims, 63);
  auto const plain = composed<gla>(dims, later.view(), earlier.view());
  later.operators.view()(0, 3) = -infinity;
  auto const both = composed<gla>(dims, later.view(), earlier.view());
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t j = 0; j < 4; ++j) {
      auto const& source = i == 3 ? later : plain;
      CHECK(both.view().end_states(0, i, j) == source.view().end_states(0, i, j));
    }
    if (i == 3) CHECK(both.view().operators(0, i) == -infinity);
    if (i != 3) CHECK(both.view().operators(0, i) == plain.view().operators(0, i));
  }
}

TEMPLATE_TEST_CASE("Decays too small for a float compose to zero, not to a NaN", "[algebra][case-02]", retnet, gla) {
  state_dims const dims{1, 1, 16, 24};
  auto const runs = random_runs<TestType>(dims, 8, 64, gate_kind::steep);
  summary_data out(TestType::form, dims);
  REQUIRE(lend_and_fold<TestType>(dims, runs.view(), out.view(), {}) == status::ok);
  CHECK(all_finite(out.end_states.packed()));
  for (float const t : out.operators.packed()) CHECK(std::exp(t) == 0.0f);
  // Nothing but the last run is left.
  CHECK(out.end_states.packed() == gather(runs.view()[7].end_states));
}

TEMPLATE_TEST_CASE("Gaps in strides are neither read nor written", "[algebra][case-11]", retnet, gla, gated_deltanet,
                   kda) {
  for (auto const& dims : {state_dims{1, 2, 16, 24}, state_dims{1, 3, 5, 3}}) {
    auto const later = random_summary<TestType>(dims, 70);
    auto const earlier = random_summary<TestType>(dims, 71);
    auto const later_gaps = random_summary<TestType>(dims, 70, gate_kind::mixed, beta_kind::uniform, layout::gaps);
    auto const earlier_gaps = random_summary<TestType>(dims, 71, gate_kind::mixed, beta_kind::uniform, layout::gaps);
    summary_data dense(TestType::form, dims), gaps(TestType::form, dims, layout::gaps);
    REQUIRE(compose<TestType>(dims, later.view(), earlier.view(), dense.view(), {}) == status::ok);
    REQUIRE(compose<TestType>(dims, later_gaps.view(), earlier_gaps.view(), gaps.view(), {}) == status::ok);
    CHECK(same_bits(dense.packed(), gaps.packed()));
    CHECK(gaps.gaps_intact());

    REQUIRE(set_identity<TestType>(dims, gaps.view(), {}) == status::ok);
    CHECK(gaps.gaps_intact());

    auto const states = random_states(dims, 72);
    tensor<3> in({dims.value_heads, dims.key_dim, dims.value_dim}), out(in);
    tensor<3> in_turned({dims.value_heads, dims.key_dim, dims.value_dim}, layout::transposed), out_turned(in_turned);
    for_each_element(in.view(), [&](float& x, std::int64_t i) { x = states[to_index(i)]; });
    for_each_element(in_turned.view(), [&](float& x, std::int64_t i) { x = states[to_index(i)]; });
    REQUIRE(apply<TestType>(dims, later.view(), in.view(), out.view(), {}) == status::ok);
    REQUIRE(apply<TestType>(dims, later_gaps.view(), in_turned.view(), out_turned.view(), {}) == status::ok);
    CHECK(same_bits(out.packed(), out_turned.packed()));
    CHECK(out_turned.gaps_intact());

    auto const runs = random_runs<TestType>(dims, 5, 73);
    auto const runs_gaps = random_runs<TestType>(dims, 5, 73, gate_kind::mixed, beta_kind::uniform, layout::gaps);
    runs_data prefixes(TestType::form, dims, 5, layout::gaps);
    REQUIRE(lend_and_fold<TestType>(dims, runs.view(), dense.view(), {}) == status::ok);
    REQUIRE(lend_and_fold<TestType>(dims, runs_gaps.view(), gaps.view(), prefixes.view()) == status::ok);
    CHECK(same_bits(dense.packed(), gaps.packed()));
    CHECK(prefixes.operators.gaps_intact());
    CHECK(prefixes.end_states.gaps_intact());
  }
}

TEMPLATE_TEST_CASE("The algebra gives the same bits for any number of threads", "[algebra]", retnet, gla,
                   gated_deltanet, kda) {
  state_dims const dims{1, 4, 64, 32};
  auto const runs = random_runs<TestType>(dims, 9, 80);
  std::vector<std::vector<float>> folded, composed_bits, applied, prefix_bits;
  for (int const threads : {1, 2, 3}) {
    summary_data out(TestType::form, dims);
    runs_data prefixes(TestType::form, dims, 9);
    REQUIRE(lend_and_fold<TestType>(dims, runs.view(), out.view(), {}, threads) == status::ok);
    folded.push_back(out.packed());
    REQUIRE(lend_and_fold<TestType>(dims, runs.view(), {}, prefixes.view(), threads) == status::ok);
    prefix_bits.push_back(prefixes.packed(8));
    REQUIRE(compose<TestType>(dims, runs.view()[1], runs.view()[0], out.view(), {.threads = threads}) == status::ok);
    composed_bits.push_back(out.packed());
    tensor<3> in({4, 64, 32}), state(in);
    auto const states = random_states(dims, 81);
    for_each_element(in.view(), [&](float& x, std::int64_t i) { x = states[to_index(i)]; });
    REQUIRE(apply<TestType>(dims, runs.view()[1], in.view(), state.view(), {.threads = threads}) == status::ok);
    applied.push_back(state.packed());
  }
  for (auto const* all : {&folded, &composed_bits, &applied, &prefix_bits}) {
    CHECK(same_bits(all->at(0), all->at(1)));
    CHECK(same_bits(all->at(0), all->at(2)));
  }
  CHECK(same_bits(folded[0], prefix_bits[0]));
}

TEMPLATE_TEST_CASE("Summaries of other shapes are refused, and nothing is written", "[algebra]", retnet, gla,
                   gated_deltanet, kda) {
  state_dims const dims{1, 2, 16, 24};
  auto const x = random_summary<TestType>(dims, 90);
  summary_data out(TestType::form, dims);
  auto const untouched = out.packed();

  auto const refuses = [&](auto damage) {
    auto damaged = x.view();
    damage(damaged);
    CHECK(compose<TestType>(dims, damaged, x.view(), out.view(), {}) == status::invalid_shape);
    CHECK(compose<TestType>(dims, x.view(), damaged, out.view(), {}) == status::invalid_shape);
    auto damaged_out = out.view();
    damage(damaged_out);
    CHECK(compose<TestType>(dims, x.view(), x.view(), damaged_out, {}) == status::invalid_shape);
    CHECK(set_identity<TestType>(dims, damaged_out, {}) == status::invalid_shape);
    CHECK(same_bits(out.packed(), untouched));
  };
  refuses([](auto& view) { view.operators.extent[0] = 1; });
  refuses([](auto& view) { view.operators.extent[1] += 1; });
  refuses([](auto& view) { view.end_states.extent[0] = 3; });
  refuses([](auto& view) { view.end_states.extent[1] = 15; });
  refuses([](auto& view) { view.end_states.extent[2] = 25; });
  refuses([](auto& view) { view.end_states.stride[2] = 2; });
  refuses([](auto& view) { view.operators.data = nullptr; });
  refuses([](auto& view) { view.end_states.data = nullptr; });
  if (TestType::form != operator_form::scalar) {
    refuses([](auto& view) { view.operators.stride[1] = 2; });
  }
  CHECK(compose<TestType>({2, 3, 16, 24}, x.view(), x.view(), out.view(), {}) == status::invalid_shape);
}

TEMPLATE_TEST_CASE("An output that overlaps an input is refused", "[algebra]", retnet, gla, gated_deltanet, kda) {
  state_dims const dims{1, 1, 16, 16};
  auto x = random_summary<TestType>(dims, 91);
  auto y = random_summary<TestType>(dims, 92);
  auto const before = x.packed();
  CHECK(compose<TestType>(dims, y.view(), x.view(), x.view(), {}) == status::invalid_shape);
  CHECK(compose<TestType>(dims, x.view(), y.view(), x.view(), {}) == status::invalid_shape);
  CHECK(same_bits(x.packed(), before));
  tensor<3> states({1, 16, 16});
  states.fill(1.0f);
  CHECK(apply<TestType>(dims, y.view(), states.view(), states.view(), {}) == status::invalid_shape);
  CHECK(apply<TestType>(dims, x.view(), states.view(), x.view().end_states, {}) == status::invalid_shape);
  CHECK(same_bits(x.packed(), before));
}

TEMPLATE_TEST_CASE("A fold refuses outputs of other shapes and scratch that is a byte too small", "[algebra]", retnet,
                   gla, gated_deltanet, kda) {
  state_dims const dims{1, 2, 16, 24};
  auto const runs = random_runs<TestType>(dims, 4, 93);
  summary_data out(TestType::form, dims);
  runs_data three(TestType::form, dims, 3);
  CHECK(lend_and_fold<TestType>(dims, runs.view(), out.view(), three.view()) == status::invalid_shape);
  auto wrong = out.view();
  wrong.end_states.extent[1] = 8;
  CHECK(lend_and_fold<TestType>(dims, runs.view(), wrong, {}) == status::invalid_shape);
  std::int64_t const bytes = fold_workspace_bytes(TestType::form, dims, 1);
  REQUIRE(bytes > 0);
  lent_scratch memory(bytes - 1);
  CHECK(fold<TestType>(dims, runs.view(), out.view(), {}, {.workspace = memory.span()}) == status::workspace_too_small);
}

}  // namespace
