// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "hypic/family/gates.hpp"
#include "hypic/store/model_layout.hpp"

/// A hybrid model of two layers, Gated DeltaNet and attention, with made-up weights: the part of an engine that hypic does
/// not see.
namespace toy {

using floats = std::vector<float>;
using family = hypic::gated_deltanet;
constexpr int heads = 2, dim = 8, width = heads * dim;

inline void require(hypic::status outcome) {
  if (outcome == hypic::status::ok) return;
  std::fprintf(stderr, "%s\n", hypic::message(outcome).c_str());
  std::exit(1);
}

template <class T>
T take(hypic::result<T> made) {
  require(made.error());
  return std::move(*made);
}

inline hypic::linear_layer const linear{
    .family = family::id,
    .dims = {.key_heads = heads, .value_heads = heads, .key_dim = dim, .value_dim = dim},
    .options = {.l2_normalize = true}};
inline hypic::attention_layer const attention{
    .query_heads = heads,
    .kv_heads = 1,
    .key_dim = dim,
    .value_dim = dim,
    .scale = 0.35f,
    .rotary = hypic::rotary_embedding{take(hypic::plain_frequencies(dim, /*base=*/1e4))}};
inline hypic::model_layout const layout{.layers = {linear, attention}, .head_rows = 24};

/// Rows of `width` times the made-up matrix of that number.
inline floats project(floats const& x, int matrix, std::size_t columns) {
  floats out(x.size() / width * columns);
  for (std::size_t i = 0; i < out.size(); ++i)
    for (std::size_t j = 0; j < width; ++j) {
      auto const weight =
          std::sin(7.1 * matrix + 3.7 * static_cast<double>(i % columns) + 1.3 * static_cast<double>(j));
      out[i] += 0.4f * x[i / columns * width + j] * static_cast<float>(weight);
    }
  return out;
}

/// Tokens at their positions through both layers. What mixes tokens is asked for: `run_linear(in, o)`, and
/// `run_attention(q, k, v, o)` with q and k turned to the positions. Returns rows of `width`.
template <class Linear, class Attention>
floats forward(std::span<std::int32_t const> tokens, std::span<std::int64_t const> positions, Linear run_linear,
               Attention run_attention) {
  auto const rows = static_cast<std::int64_t>(tokens.size());
  auto const in_heads = [rows](floats& of, int count) { return hypic::dense_view(of.data(), rows, count, dim); };
  floats x, o(tokens.size() * width);
  auto const add = [&x](floats const& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  for (auto const token : tokens)
    for (int i = 1; i <= width; ++i) x.push_back(static_cast<float>(std::sin(1.7 * token * i)));

  auto q = project(x, 1, heads * dim), k = project(x, 2, heads * dim), v = project(x, 3, heads * dim);
  auto gates = project(x, 4, heads), beta = project(x, 5, heads);
  for (auto& g : gates) g = hypic::log_sigmoid(g + 4.0f);
  for (auto& b : beta) b = 1.0f / (1.0f + std::exp(-b));
  hypic::const_rows_view const in{in_heads(k, heads), in_heads(v, heads),
                                  hypic::dense_view(gates.data(), rows, heads, 1),
                                  hypic::dense_view(beta.data(), rows, heads)};
  run_linear(hypic::query_rows_view{in_heads(q, heads), in}, in_heads(o, heads));
  add(project(o, 6, width));

  q = project(x, 7, heads * dim), k = project(x, 8, dim), v = project(x, 9, dim);
  for (std::int64_t r = 0; r < rows; ++r) {
    auto const turn = hypic::make_rotation(*attention.rotary, positions[static_cast<std::size_t>(r)]);
    for (auto const& row : {in_heads(q, heads).rows(r, 1), in_heads(k, 1).rows(r, 1)})
      require(hypic::rotate_rows(turn, row, row, {}));
  }
  run_attention(in_heads(q, heads), in_heads(k, 1), in_heads(v, 1), in_heads(o, heads));
  add(project(o, 10, width));
  return x;
}

}  // namespace toy
