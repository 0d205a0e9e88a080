// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

#include "support/layer_data.hpp"

namespace hypic::test {

/// A tensor of seeded N(0, deviation) elements.
template <int Rank>
tensor<Rank> random_tensor(extents<Rank> extent, std::uint64_t seed, float deviation = 1.0f,
                           layout how = layout::dense) {
  tensor<Rank> made(extent, how);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  for_each_element(made.view(), [&](float& x, std::int64_t) { x = normal(random); });
  return made;
}

}  // namespace hypic::test
