// SPDX-License-Identifier: Apache-2.0
// Two documents go through a Gated DeltaNet layer, each alone, as a cache would keep them. Composed, they leave the state
// that one run over both leaves; added up, which looks right, they do not.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "hypic/algebra/summary.hpp"
#include "hypic/segment/segment_prefill.hpp"

namespace {

constexpr hypic::state_dims dims{.key_heads = 2, .value_heads = 4, .key_dim = 64, .value_dim = 64};
constexpr std::int64_t first_tokens = 300, second_tokens = 200;
using family = hypic::gated_deltanet;

void require(hypic::status outcome) {
  if (outcome == hypic::status::ok) return;
  std::fprintf(stderr, "%s\n", hypic::message(outcome).c_str());
  std::exit(1);
}

/// What the layer's projections would give for all tokens.
struct layer_rows {
  std::vector<float> k, v, gates, beta;

  explicit layer_rows(std::int64_t tokens)
      : k(size(tokens * dims.key_heads * dims.key_dim)),
        v(size(tokens * dims.value_heads * dims.value_dim)),
        gates(size(tokens * dims.value_heads)),
        beta(gates.size()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto& x : k) x = normal(random);
    for (auto& x : v) x = normal(random);
    for (auto& x : gates) x = -0.01f * std::abs(normal(random));
    for (auto& x : beta) x = 1.0f / (1.0f + std::exp(-normal(random)));
  }
  hypic::const_rows_view view() const {
    auto const tokens = static_cast<std::int64_t>(gates.size()) / dims.value_heads;
    return {hypic::dense_view(k.data(), tokens, dims.key_heads, dims.key_dim),
            hypic::dense_view(v.data(), tokens, dims.value_heads, dims.value_dim),
            hypic::dense_view(gates.data(), tokens, dims.value_heads, 1),
            hypic::dense_view(beta.data(), tokens, dims.value_heads)};
  }
  static std::size_t size(std::int64_t elements) { return static_cast<std::size_t>(elements); }
};

/// A summary with memory of its own.
struct summary {
  std::vector<float> op = std::vector<float>(dims.value_heads * dims.key_dim * dims.key_dim);
  std::vector<float> end_state = std::vector<float>(dims.value_heads * dims.key_dim * dims.value_dim);

  hypic::summary_view view() {
    return {hypic::dense_view(op.data(), dims.value_heads, dims.key_dim * dims.key_dim),
            hypic::dense_view(end_state.data(), dims.value_heads, dims.key_dim, dims.value_dim)};
  }
};

/// The summary of a run of tokens that starts from nothing.
summary summarize(hypic::const_rows_view rows) {
  auto const plan = hypic::plan_segment_prefill(family::id, dims, {.l2_normalize = true}, /*head_rows=*/0, rows.count(),
                                                /*slots=*/0, {{.rows = rows.count()}});
  require(plan.error());
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan->workspace_bytes(/*threads=*/2)));
  summary out;
  auto const body = out.view();
  hypic::query_rows_view const in{.rows = rows};
  require(hypic::segment_prefill<family>(*plan, in, {.bodies = {&body, 1}}, {.workspace = workspace, .threads = 2}));
  return out;
}

double distance(std::vector<float> const& found, std::vector<float> const& wanted) {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(double{found[i]} - double{wanted[i]}, 2);
    size += std::pow(double{wanted[i]}, 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace

int main() {
  layer_rows const rows(first_tokens + second_tokens);
  auto const all = rows.view();
  auto whole = summarize(all);

  // [begin compose]
  auto first = summarize(all.slice(0, first_tokens));
  auto second = summarize(all.slice(first_tokens, second_tokens));
  summary both;
  require(hypic::compose<family>(dims, /*later=*/second.view(), /*earlier=*/first.view(), both.view(), {}));
  // [end compose]

  auto added = first.end_state;
  for (std::size_t i = 0; i < added.size(); ++i) added[i] += second.end_state[i];
  auto const composed_error = distance(both.end_state, whole.end_state);
  auto const added_error = distance(added, whole.end_state);
  std::printf("composed: state off by %.1e, operator by %.1e\nadded up: state off by %.1e\n", composed_error,
              distance(both.op, whole.op), added_error);
  return composed_error <= 1e-5 && added_error > 1e-3 ? 0 : 1;
}
