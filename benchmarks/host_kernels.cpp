// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "comparison.hpp"
#include "hypic/algebra/summary.hpp"
#include "hypic/segment/seam_repair.hpp"
#include "hypic/segment/segment_prefill.hpp"

/// The host back end's kernels, each beside the best that the machine does of its kind, on the same threads of one run:
/// a matrix product, a loop of small products, a copy. Absolute times are printed too and say little.
namespace {

constexpr std::int64_t dim = 128;
/// Bytes that a benchmark bound by memory walks over.
constexpr std::int64_t large = std::int64_t{1} << 30;

int threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::vector<float> normal(std::int64_t count, float scale = 1.0f) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution(0.0f, scale);
  // Values repeat after a while: drawing gigabytes of them would outlast the benchmarks.
  std::vector<float> values(static_cast<std::size_t>(count));
  auto const drawn = std::min<std::size_t>(values.size(), std::size_t{1} << 20);
  for (std::size_t i = 0; i < drawn; ++i) values[i] = distribution(random);
  for (auto i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
  return values;
}

void set_rate(benchmark::State& state, double amount_an_iteration) {
  state.counters["rate"] = benchmark::Counter(amount_an_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

// What the machine can do.

void sgemm(benchmark::State& state) {
  constexpr std::int64_t n = 1024;
  openblas_set_num_threads(threads());
  auto const left = normal(n * n);
  auto const right = normal(n * n);
  std::vector<float> out(static_cast<std::size_t>(n * n));
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, left.data(), n, right.data(), n, 0.0f,
                out.data(), n);
    benchmark::DoNotOptimize(out.data());
  }
  set_rate(state, 2.0 * n * n * n);
  state.SetLabel(openblas_get_corename());
}
BENCHMARK(sgemm)->UseRealTime();

/// Reads half of the bytes and writes the other half.
void copy(benchmark::State& state) {
  auto const from = normal(large / 2 / 4);
  auto to = from;
  std::int64_t const parts = threads();
  auto const part = static_cast<std::int64_t>(from.size()) / parts;
  for (auto _ : state) {
#pragma omp parallel for num_threads(threads())
    for (std::int64_t p = 0; p < parts; ++p)
      std::memcpy(to.data() + p * part, from.data() + p * part, static_cast<std::size_t>(part) * sizeof(float));
    benchmark::DoNotOptimize(to.data());
  }
  set_rate(state, static_cast<double>(large));
}
BENCHMARK(copy)->UseRealTime();

// Prefill.

/// The delta rule's FLOP a token and value head at chunk 64 and D 128, by the usual count.
double delta_rule_flop(bool with_operator) { return 163840.0 + (with_operator ? 81920.0 : 0.0); }

/// Segments of one length through one layer of four heads: o, S0 and, where asked for, T.
template <hypic::state_family F>
void prefill(benchmark::State& state, std::int64_t segments, std::int64_t tokens, bool with_operator) {
  constexpr std::int32_t heads = 4;
  constexpr auto gate_width = hypic::gate_elements<F>(dim);
  constexpr auto operator_size = hypic::operator_elements(F::form, dim);
  auto const rows = segments * tokens;
  std::vector<hypic::prefill_sequence> sequences;
  for (std::int64_t s = 0; s < segments; ++s)
    sequences.push_back({.first_row = s * tokens, .rows = tokens, .final_slot = static_cast<std::int32_t>(s)});
  auto const plan = *hypic::plan_segment_prefill(F::id, {heads, heads, dim, dim}, {.l2_normalize = true}, 0, rows,
                                                 segments, std::move(sequences));

  auto const q = normal(rows * heads * dim);
  auto const k = normal(rows * heads * dim);
  auto const v = normal(rows * heads * dim);
  auto gates = normal(rows * heads * gate_width, 1e-3f);
  for (auto& gate : gates) gate = -std::abs(gate);
  std::vector<float> const beta(static_cast<std::size_t>(rows * heads), 0.5f);
  hypic::query_rows_view in;
  in.q = hypic::dense_view(q.data(), rows, heads, dim);
  in.rows.k = hypic::dense_view(k.data(), rows, heads, dim);
  in.rows.v = hypic::dense_view(v.data(), rows, heads, dim);
  in.rows.gates = hypic::dense_view(gates.data(), rows, heads, gate_width);
  if (F::delta_rule) in.rows.beta = hypic::dense_view(beta.data(), rows, heads);

  std::vector<float> o(static_cast<std::size_t>(rows * heads * dim));
  std::vector<float> states(static_cast<std::size_t>(segments * heads * dim * dim));
  auto end_states = states;
  std::vector<float> operators(static_cast<std::size_t>(segments * heads * operator_size));
  std::vector<hypic::summary_view> bodies;
  for (std::int64_t s = 0; s < segments; ++s)
    bodies.push_back({hypic::dense_view(operators.data(), segments, heads, operator_size)[s],
                      hypic::dense_view(end_states.data(), segments, heads, dim, dim)[s]});
  hypic::prefill_outputs out{.o = hypic::dense_view(o.data(), rows, heads, dim),
                             .states = hypic::dense_view(states.data(), segments, heads, dim, dim)};
  if (with_operator) out.bodies = bodies;

  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes(threads())));
  for (auto _ : state) {
    auto const outcome = hypic::segment_prefill<F>(plan, in, out, {.workspace = workspace, .threads = threads()});
    if (outcome != hypic::status::ok) state.SkipWithError(hypic::message(outcome).c_str());
    benchmark::DoNotOptimize(o.data());
  }
  if (F::delta_rule) set_rate(state, static_cast<double>(rows * heads) * delta_rule_flop(with_operator));
}

template <hypic::state_family F>
void prefill_o_s0(benchmark::State& state) {
  prefill<F>(state, 32, 512, false);
}
template <hypic::state_family F>
void prefill_o_s0_t(benchmark::State& state) {
  prefill<F>(state, 32, 512, true);
}
template <hypic::state_family F>
void prefill_by_tokens(benchmark::State& state) {
  prefill<F>(state, 1, state.range(0), true);
}
std::vector<std::int64_t> const token_counts{1024, 2048, 4096, 8192, 16384, 32768};

#define HYPIC_PREFILL(F)                                                          \
  BENCHMARK(prefill_o_s0<hypic::F>)->Name("prefill_o_s0." #F)->UseRealTime();     \
  BENCHMARK(prefill_o_s0_t<hypic::F>)->Name("prefill_o_s0_t." #F)->UseRealTime(); \
  BENCHMARK(prefill_by_tokens<hypic::F>)->Name("prefill_by_tokens." #F)->ArgsProduct({token_counts})->UseRealTime()
HYPIC_PREFILL(retnet);
HYPIC_PREFILL(gla);
HYPIC_PREFILL(gated_deltanet);
HYPIC_PREFILL(kda);

// Folds of more bytes of summaries than any cache holds.

constexpr std::int32_t fold_heads = 32;

/// Summaries of a layer, as many as `large` bytes hold.
struct summaries {
  explicit summaries(hypic::operator_form form)
      : width(hypic::operator_elements(form, dim)),
        runs(large / ((dim * dim + width) * fold_heads * std::int64_t{sizeof(float)})),
        operators(form == hypic::operator_form::dense
                      ? normal(runs * fold_heads * width, 1.0f / std::sqrt(static_cast<float>(dim)))
                      : std::vector<float>(static_cast<std::size_t>(runs * fold_heads * width), -1e-3f)),
        end_states(normal(runs * fold_heads * dim * dim)),
        out_operators(static_cast<std::size_t>(fold_heads * width)),
        out_states(static_cast<std::size_t>(fold_heads * dim * dim)) {}

  std::int64_t width;
  std::int64_t runs;
  std::vector<float> operators;
  std::vector<float> end_states;
  std::vector<float> out_operators;
  std::vector<float> out_states;
};

double dense_fold_flop(std::int64_t runs) {
  return static_cast<double>((runs - 1) * fold_heads) * 4.0 * dim * dim * dim;
}

template <hypic::state_family F>
void fold(benchmark::State& state) {
  summaries all(F::form);
  hypic::state_dims const dims{fold_heads, fold_heads, dim, dim};
  std::vector<std::byte> workspace(static_cast<std::size_t>(hypic::fold_workspace_bytes(F::form, dims, threads())));
  for (auto _ : state) {
    auto const outcome =
        hypic::fold<F>(dims,
                       {hypic::dense_view<float const>(all.operators.data(), all.runs, fold_heads, all.width),
                        hypic::dense_view<float const>(all.end_states.data(), all.runs, fold_heads, dim, dim)},
                       {hypic::dense_view(all.out_operators.data(), fold_heads, all.width),
                        hypic::dense_view(all.out_states.data(), fold_heads, dim, dim)},
                       {}, {.workspace = workspace, .threads = threads()});
    if (outcome != hypic::status::ok) state.SkipWithError(hypic::message(outcome).c_str());
    benchmark::DoNotOptimize(all.out_states.data());
  }
  set_rate(state, F::form == hypic::operator_form::dense ? dense_fold_flop(all.runs) : static_cast<double>(large));
}
BENCHMARK(fold<hypic::retnet>)->Name("fold.scalar")->UseRealTime();
BENCHMARK(fold<hypic::gla>)->Name("fold.diagonal")->UseRealTime();
BENCHMARK(fold<hypic::gated_deltanet>)->Name("fold.dense")->UseRealTime();

/// The products of a dense fold by a loop over OpenBLAS, a thread a head.
void sgemm_loop(benchmark::State& state) {
  summaries all(hypic::operator_form::dense);
  openblas_set_num_threads(1);
  constexpr auto size = dim * dim;
  auto const product = [](float const* left, float const* right, float addend, float* out) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dim, dim, dim, 1.0f, left, dim, right, dim, addend, out,
                dim);
  };
  for (auto _ : state) {
#pragma omp parallel for num_threads(threads()) schedule(dynamic, 1)
    for (std::int64_t head = 0; head < fold_heads; ++head) {
      std::vector<float> op(all.operators.begin() + head * size, all.operators.begin() + (head + 1) * size);
      std::vector<float> end(all.end_states.begin() + head * size, all.end_states.begin() + (head + 1) * size);
      std::vector<float> next(size);
      for (std::int64_t run = 1; run < all.runs; ++run) {
        auto const at = (run * fold_heads + head) * size;
        product(all.operators.data() + at, op.data(), 0.0f, next.data());
        op.swap(next);
        std::copy_n(all.end_states.begin() + at, size, next.begin());
        product(all.operators.data() + at, end.data(), 1.0f, next.data());
        end.swap(next);
      }
      std::copy(op.begin(), op.end(), all.out_operators.begin() + head * size);
      std::copy(end.begin(), end.end(), all.out_states.begin() + head * size);
    }
    benchmark::DoNotOptimize(all.out_states.data());
  }
  set_rate(state, dense_fold_flop(all.runs));
  state.SetLabel(openblas_get_corename());
}
BENCHMARK(sgemm_loop)->UseRealTime();

// A hit.

/// One linear layer's walk over sixteen cached segments of state.range(0) tokens, seams of eight rows.
void hit_by_segment_tokens(benchmark::State& state) {
  constexpr std::int32_t spans = 16, heads = 4, seam = 8;
  hypic::state_dims const dims{heads, heads, dim, dim};
  // The records of segments, which is all that a hit reads of them, have one size.
  auto const body_tokens = state.range(0) - seam;
  auto const k = normal(state.range(0) * heads * dim);
  std::vector<float> const gates(static_cast<std::size_t>(state.range(0) * heads), -1e-3f);
  std::vector<float> const beta(gates.size(), 0.5f);
  hypic::const_rows_view rows;
  rows.k = hypic::dense_view(k.data(), state.range(0), heads, dim);
  rows.v = rows.k;
  rows.gates = hypic::dense_view(gates.data(), state.range(0), heads, 1);
  rows.beta = hypic::dense_view(beta.data(), state.range(0), heads);

  std::vector<float> operators(static_cast<std::size_t>(heads * dim * dim));
  auto end_states = operators;
  hypic::summary_view const body{hypic::dense_view(operators.data(), heads, dim * dim),
                                 hypic::dense_view(end_states.data(), heads, dim, dim)};
  auto const prefill_plan = *hypic::plan_segment_prefill(hypic::family_id::gated_deltanet, dims, {.l2_normalize = true},
                                                         0, body_tokens, 0, {{.rows = body_tokens}});
  std::vector<std::byte> workspace(static_cast<std::size_t>(prefill_plan.workspace_bytes(threads())));
  hypic::query_rows_view const body_rows{.rows = rows.slice(seam, body_tokens)};
  auto const prepared = hypic::segment_prefill<hypic::gated_deltanet>(prefill_plan, body_rows, {.bodies = {&body, 1}},
                                                                      {.workspace = workspace, .threads = threads()});
  if (prepared != hypic::status::ok) return state.SkipWithError(hypic::message(prepared).c_str());

  std::vector<hypic::seam_span> walk;
  for (std::int32_t s = 0; s < spans; ++s)
    walk.push_back({.first_row = s * seam, .rows = seam, .cached = s, .head_rows = seam, .has_body = true});
  auto const plan = *hypic::plan_seam_repair(hypic::family_id::gated_deltanet, dims, {.l2_normalize = true},
                                             spans * seam, 1, spans, walk, {{.spans = spans, .final_slot = 0}});
  std::vector<hypic::cached_span> const records(spans, {.head = rows.slice(0, seam), .body = body});
  auto const fresh = normal(spans * seam * heads * dim);
  hypic::query_rows_view in;
  in.q = hypic::dense_view(fresh.data(), spans * seam, heads, dim);
  in.rows = {in.q, in.q, rows.gates, rows.beta};
  in.rows.gates = hypic::dense_view(gates.data(), spans * seam, heads, 1);
  in.rows.beta = hypic::dense_view(beta.data(), spans * seam, heads);
  std::vector<float> o(fresh.size());
  std::vector<float> states(static_cast<std::size_t>(heads * dim * dim));
  workspace.resize(static_cast<std::size_t>(plan.workspace_bytes(threads())));
  for (auto _ : state) {
    auto const outcome =
        hypic::seam_repair<hypic::gated_deltanet>(plan, in, records,
                                                  {.o = hypic::dense_view(o.data(), spans * seam, heads, dim),
                                                   .states = hypic::dense_view(states.data(), 1, heads, dim, dim)},
                                                  {.workspace = workspace, .threads = threads()});
    if (outcome != hypic::status::ok) state.SkipWithError(hypic::message(outcome).c_str());
    benchmark::DoNotOptimize(o.data());
  }
}
std::vector<std::int64_t> const segment_tokens{128, 512, 2048, 8192};
BENCHMARK(hit_by_segment_tokens)->ArgsProduct({segment_tokens})->UseRealTime();

/// OpenBLAS picks its oldest kernels on a processor that is younger than it; the fastest that runs is the fair peer.
/// It reads the variable once, as it is loaded, so the program starts again.
void use_best_blas(char** words) {
#if defined(__x86_64__)
  if (std::string_view(openblas_get_corename()) != "Prescott" || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  char const* core = __builtin_cpu_supports("avx512vl")                                ? "SkylakeX"
                     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell"
                                                                                       : nullptr;
  if (core != nullptr && ::setenv("OPENBLAS_CORETYPE", core, 0) == 0) ::execv("/proc/self/exe", words);
#else
  static_cast<void>(words);
#endif
}

}  // namespace

int main(int count, char** words) {
  use_best_blas(words);
  std::vector<char*> arguments(words, words + count);
  // Flags of the caller come later and win.
  char repetitions[] = "--benchmark_repetitions=7";
  char interleaved[] = "--benchmark_enable_random_interleaving=true";
  arguments.insert(arguments.begin() + 1, {repetitions, interleaved});
  auto argument_count = static_cast<int>(arguments.size());
  benchmark::Initialize(&argument_count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(argument_count, arguments.data())) return 1;

  hypic_benchmarks::best_reporter ran;
  benchmark::RunSpecifiedBenchmarks(&ran);
  hypic_benchmarks::print_times(ran);
  hypic_benchmarks::print_ratios({{.name = "prefill_o_s0_t.gated_deltanet", .reference = "sgemm", .bound = 0.25},
                                  {.name = "prefill_o_s0_t.gated_deltanet",
                                   .reference = "prefill_o_s0.gated_deltanet",
                                   .of_times = true,
                                   .bound = 1.6},
                                  {.name = "fold.dense", .reference = "sgemm_loop", .bound = 0.5},
                                  {.name = "fold.scalar", .reference = "copy", .bound = 0.5},
                                  {.name = "fold.diagonal", .reference = "copy", .bound = 0.5}},
                                 ran);
  for (auto const* family : {"retnet", "gla", "gated_deltanet", "kda"})
    hypic_benchmarks::print_growth({std::string("prefill_by_tokens.") + family, "tokens", token_counts}, ran);
  hypic_benchmarks::print_growth({"hit_by_segment_tokens", "tokens a segment", segment_tokens}, ran);
  return 0;
}
