// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tables/layer_rows.hpp"

/// What the library's results are held against: sequential fp64 computations that share no code with it.
namespace hypic_tables {

/// Row `row` of `from`, its key turned by `turn` positions.
struct row_reference {
  layer_rows const* from = nullptr;
  std::int64_t row = 0;
  std::int64_t turn = 0;
};

/// A linear layer's states [value_heads, Dk, Dv], the recurrence run over `rows` one after the other from zero, after
/// each of the ascending counts of rows `after`.
std::vector<std::vector<double>> sequential_states(hypic::linear_layer const& shape,
                                                   std::span<row_reference const> rows,
                                                   std::span<std::int64_t const> after, int threads);

/// An attention layer's outputs for the rows of `asking`, which stand at `positions`, over the keys and values of
/// `prompt`, of which row j stands at position j: [rows, query_heads, value_dim].
std::vector<double> causal_attention(hypic::attention_layer const& shape, layer_rows const& asking,
                                     std::span<std::int64_t const> positions, std::span<row_reference const> prompt,
                                     int threads);

/// |found - expected|_F / |expected|_F. Shapes: as many values in both.
double relative_error(std::span<float const> found, std::span<double const> expected);

}  // namespace hypic_tables
