// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "hypic/algebra/summary.hpp"
#include "hypic/segment/segment_prefill.hpp"

/// The host back end's own work beside OpenBLAS on one thread, in one run: compare the FLOP rates, not the times.
namespace {

constexpr std::int64_t dim = 128;

std::vector<float> normal(std::int64_t count, float scale = 1.0f) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (auto& v : values) v = distribution(random);
  return values;
}

void count_flop(benchmark::State& state, double flop_an_iteration) {
  state.counters["FLOP/s"] = benchmark::Counter(flop_an_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

void sgemm(benchmark::State& state) {
  constexpr std::int64_t n = 1024;
  openblas_set_num_threads(1);
  auto const left = normal(n * n);
  auto const right = normal(n * n);
  std::vector<float> out(static_cast<std::size_t>(n * n));
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, left.data(), n, right.data(), n, 0.0f,
                out.data(), n);
    benchmark::DoNotOptimize(out.data());
  }
  count_flop(state, 2.0 * n * n * n);
  state.SetLabel(openblas_get_corename());
}
BENCHMARK(sgemm);

/// One head of one segment: o and S0 and, for range 1, T. Range 0: tokens.
/// The delta rule's FLOP a token at chunk 64 and D 128, by the usual count: 163,840 for o and S0, 81,920 more for T.
template <hypic::state_family F>
void segment_prefill(benchmark::State& state) {
  auto const tokens = state.range(0);
  bool const with_operator = state.range(1) != 0;
  constexpr auto gate_width = hypic::gate_elements<F>(dim);
  hypic::row_options const options{.l2_normalize = true};
  auto const plan =
      *hypic::plan_segment_prefill(F::id, {1, 1, dim, dim}, options, 0, tokens, 1, {{.rows = tokens, .final_slot = 0}});
  auto const q = normal(tokens * dim);
  auto const k = normal(tokens * dim);
  auto const v = normal(tokens * dim);
  auto gates = normal(tokens * gate_width, 1e-3f);
  for (auto& gate : gates) gate = -std::abs(gate);
  std::vector<float> const beta(static_cast<std::size_t>(tokens), 0.5f);
  hypic::query_rows_view in;
  in.q = hypic::dense_view(q.data(), tokens, 1, dim);
  in.rows.k = hypic::dense_view(k.data(), tokens, 1, dim);
  in.rows.v = hypic::dense_view(v.data(), tokens, 1, dim);
  in.rows.gates = hypic::dense_view(gates.data(), tokens, 1, gate_width);
  if (F::delta_rule) in.rows.beta = hypic::dense_view(beta.data(), tokens, 1);

  std::vector<float> o(static_cast<std::size_t>(tokens * dim));
  std::vector<float> end_state(static_cast<std::size_t>(dim * dim));
  std::vector<float> states = end_state;
  std::vector<float> operators(static_cast<std::size_t>(hypic::operator_elements(F::form, dim)));
  hypic::summary_view const body{hypic::dense_view(operators.data(), 1, hypic::operator_elements(F::form, dim)),
                                 hypic::dense_view(end_state.data(), 1, dim, dim)};
  hypic::prefill_outputs out{.o = hypic::dense_view(o.data(), tokens, 1, dim),
                             .states = hypic::dense_view(states.data(), 1, 1, dim, dim)};
  if (with_operator) out.bodies = {&body, 1};
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes(1)));
  for (auto _ : state) {
    auto const outcome = hypic::segment_prefill<F>(plan, in, out, {.workspace = workspace});
    if (outcome != hypic::status::ok) state.SkipWithError("segment_prefill");
    benchmark::DoNotOptimize(o.data());
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
  if (F::delta_rule) count_flop(state, static_cast<double>(tokens) * (163840.0 + (with_operator ? 81920.0 : 0.0)));
}
#define HYPIC_PREFILL(F) BENCHMARK(segment_prefill<hypic::F>)->ArgsProduct({{512, 2048}, {0, 1}})
HYPIC_PREFILL(retnet);
HYPIC_PREFILL(gla);
HYPIC_PREFILL(gated_deltanet);
HYPIC_PREFILL(kda);

/// Folds 16 dense summaries of one head.
void fold_dense(benchmark::State& state) {
  using family = hypic::gated_deltanet;
  constexpr std::int64_t runs = 16;
  hypic::state_dims const dims{1, 1, dim, dim};
  auto const scale = 1.0f / std::sqrt(static_cast<float>(dim));
  auto const operators = normal(runs * dim * dim, scale);
  auto const end_states = normal(runs * dim * dim);
  std::vector<float> op(static_cast<std::size_t>(dim * dim));
  std::vector<float> end_state = op;
  std::vector<std::byte> workspace(
      static_cast<std::size_t>(hypic::fold_workspace_bytes(hypic::operator_form::dense, dims, 1)));
  for (auto _ : state) {
    auto const outcome = hypic::fold<family>(
        dims,
        {hypic::dense_view(operators.data(), runs, 1, dim * dim),
         hypic::dense_view(end_states.data(), runs, 1, dim, dim)},
        {hypic::dense_view(op.data(), 1, dim * dim), hypic::dense_view(end_state.data(), 1, dim, dim)}, {},
        {.workspace = workspace});
    if (outcome != hypic::status::ok) state.SkipWithError("fold");
    benchmark::DoNotOptimize(op.data());
  }
  count_flop(state, (runs - 1) * 4.0 * dim * dim * dim);
}
BENCHMARK(fold_dense);

}  // namespace
