// SPDX-License-Identifier: Apache-2.0
// A family that hypic does not ship, on its public headers: RWKV-7. Its state here is [Dk, Dv], the transpose of the
// published one, so that factors stand on the left:  S <- (Diag(w) - (a kk) kk^T) S + k v^T,  kk being the unit removal
// key and k the key that is written. Source: arXiv:2503.14456.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "hypic/segment/laws.hpp"
#include "hypic/segment/run_steps.hpp"

// [begin family]
struct rwkv7 {
  static constexpr hypic::operator_form form = hypic::operator_form::dense;

  struct row {
    float const *w, *a, *kk, *k, *v;  ///< decay, removal rate, removal key, key: Dk each; value: Dv
  };

  static void transition(row const& r, hypic::step_state s) noexcept {
    for (std::int64_t c = 0; c < s.columns; ++c) {
      double removed = 0.0;
      for (std::int64_t d = 0; d < s.key_dim; ++d) removed += double{r.kk[d]} * s(d, c);
      for (std::int64_t d = 0; d < s.key_dim; ++d) s(d, c) = r.w[d] * s(d, c) - double{r.a[d]} * r.kk[d] * removed;
    }
  }

  static void update(row const& r, hypic::step_state s) noexcept {
    for (std::int64_t d = 0; d < s.key_dim; ++d)
      for (std::int64_t c = 0; c < s.columns; ++c) s(d, c) += double{r.k[d]} * r.v[c];
  }
};
static_assert(hypic::step_family<rwkv7>);
// [end family]

namespace {

constexpr std::int32_t dk = 16, dv = 12;
constexpr std::int64_t tokens = 40, split = 17;

/// One head's random rows.
struct rows {
  std::vector<float> w, a, kk, k, v;
  rows() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    auto const fill = [&](std::vector<float>& to, std::int64_t width, auto of) {
      to.resize(static_cast<std::size_t>(tokens * width));
      for (auto& x : to) x = of(normal(random));
    };
    fill(w, dk, [](float x) { return std::exp(-0.6f / (1.0f + std::exp(-x))); });
    fill(a, dk, [](float x) { return 1.0f / (1.0f + std::exp(-x)); });
    fill(kk, dk, [](float x) { return x; });
    fill(k, dk, [](float x) { return x; });
    fill(v, dv, [](float x) { return x; });
    for (std::int64_t t = 0; t < tokens; ++t) {
      float* const key = kk.data() + t * dk;
      float squares = 0.0f;
      for (std::int64_t d = 0; d < dk; ++d) squares += key[d] * key[d];
      for (std::int64_t d = 0; d < dk; ++d) key[d] /= std::sqrt(squares);
    }
  }
  rwkv7::row operator()(std::int64_t t, std::int32_t) const {
    return {&w[at(t)], &a[at(t)], &kk[at(t)], &k[at(t)], v.data() + t * dv};
  }
  static std::size_t at(std::int64_t t) { return static_cast<std::size_t>(t * dk); }
};

/// What a run of tokens does to the state.
struct summed_run {
  std::vector<float> op = std::vector<float>(dk * dk);
  std::vector<float> end_state = std::vector<float>(dk * dv);
  hypic::summary_view view() {
    return {hypic::dense_view(op.data(), 1, dk * dk), hypic::dense_view(end_state.data(), 1, dk, dv)};
  }
};

/// The recurrence as it is published: S [Dv, Dk] <- S (Diag(w) - kk^T (a kk)) + v^T k.
std::vector<double> published(rows const& in) {
  std::vector<double> state(dv * dk);
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto const r = in(t, 0);
    for (std::int64_t i = 0; i < dv; ++i) {
      double* const line = state.data() + i * dk;
      double along = 0.0;
      for (std::int64_t j = 0; j < dk; ++j) along += line[j] * double{r.kk[j]};
      for (std::int64_t j = 0; j < dk; ++j) {
        line[j] = line[j] * double{r.w[j]} - along * double{r.a[j]} * double{r.kk[j]} + double{r.v[i]} * double{r.k[j]};
      }
    }
  }
  return state;
}

}  // namespace

int main() {
  hypic::state_dims const dims{.key_heads = 1, .value_heads = 1, .key_dim = dk, .value_dim = dv};
  rows const in;
  bool passed = true;
  for (auto const& report : hypic::check_laws<rwkv7>(dims, tokens, in)) {
    std::printf("%-36s %8.1e (bound %.0e)%s\n", report.law, report.error, report.bound,
                report.holds() ? "" : "  BROKEN");
    passed = passed && report.holds();
  }

  // Two segments, each computed alone, become one.
  summed_run earlier, later, both;
  std::vector<std::byte> memory(static_cast<std::size_t>(hypic::step_workspace_bytes(dims)));
  hypic::host_exec const ex{.workspace = memory};
  auto const later_rows = [&](std::int64_t t, std::int32_t head) { return in(split + t, head); };
  for (auto const outcome :
       {hypic::run_steps<rwkv7>(dims, split, in, {}, {.summary = earlier.view()}, ex),
        hypic::run_steps<rwkv7>(dims, tokens - split, later_rows, {}, {.summary = later.view()}, ex),
        hypic::compose<rwkv7>(dims, later.view(), earlier.view(), both.view(), ex)}) {
    if (outcome == hypic::status::ok) continue;
    std::fprintf(stderr, "%s\n", hypic::message(outcome).c_str());
    return 1;
  }
  auto const wanted = published(in);
  double difference = 0.0, size = 0.0;
  for (std::int64_t d = 0; d < dk; ++d)
    for (std::int64_t c = 0; c < dv; ++c) {
      auto const w = wanted[static_cast<std::size_t>(c * dk + d)];
      auto const x = double{both.end_state[static_cast<std::size_t>(d * dv + c)]} - w;
      difference += x * x;
      size += w * w;
    }
  auto const error = std::sqrt(difference / size);
  std::printf("%-36s %8.1e (bound %.0e)\n", "composed equals the published loop", error, 1e-5);
  return passed && error <= 1e-5 ? 0 : 1;
}
