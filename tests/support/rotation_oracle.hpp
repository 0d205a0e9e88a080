// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

/// Rotary embeddings in extended precision, each frequency from the sentence that defines it. It uses nothing of the
/// library.
namespace oracle {

using real = long double;

/// Pair i of n turns by a radian a token at i = 0, and by 1/base of it where i would be n: a geometric series.
inline std::vector<real> plain_frequencies(std::size_t pairs, real base) {
  real const step = std::exp(-std::log(base) / static_cast<real>(pairs));
  std::vector<real> frequencies(pairs, 1.0L);
  for (std::size_t i = 1; i < pairs; ++i) frequencies[i] = frequencies[i - 1] * step;
  return frequencies;
}

/// Position interpolation: a prompt `factor` times as long is squeezed into the positions that the model knows.
inline std::vector<real> linear_frequencies(std::size_t pairs, real base, real factor) {
  auto frequencies = plain_frequencies(pairs, base);
  for (auto& frequency : frequencies) frequency /= factor;
  return frequencies;
}

/// NTK-aware: still a geometric series from 1, its last pair being slowed by `factor`.
inline std::vector<real> ntk_frequencies(std::size_t pairs, real base, real factor) {
  real const last = std::pow(base, 1.0L / static_cast<real>(pairs) - 1.0L) / factor;
  std::vector<real> frequencies(pairs, 1.0L);
  for (std::size_t i = 1; i < pairs; ++i) {
    frequencies[i] = std::pow(last, static_cast<real>(i) / static_cast<real>(pairs - 1));
  }
  return frequencies;
}

/// YaRN: pairs that turn at least 32 times over the original positions stay, those that do not turn once are
/// interpolated, and in between the mixture is linear in the pair's index. The ends are whole pairs: the last one that
/// turns 32 times, and the first one that does not turn more than once.
inline std::vector<real> yarn_frequencies(std::size_t pairs, real base, real factor, real original_positions) {
  auto frequencies = plain_frequencies(pairs, base);
  auto const turns = [&](real frequency) { return original_positions * frequency / (2.0L * std::numbers::pi_v<real>); };
  auto const above = [&](real bound) {
    return static_cast<real>(
        std::count_if(frequencies.begin(), frequencies.end(), [&](real f) { return turns(f) > bound; }));
  };
  real const first = std::max(above(32.0L) - 1.0L, 0.0L);
  real const last = above(1.0L);
  for (std::size_t i = 0; i < pairs; ++i) {
    real const ramp = std::clamp((static_cast<real>(i) - first) / (last - first), 0.0L, 1.0L);
    frequencies[i] *= 1.0L - ramp + ramp / factor;
  }
  return frequencies;
}

/// Turns pair i of `x` by position * frequencies[i]; what is left of `x` passes through.
inline std::vector<real> turned(std::vector<real> x, std::vector<real> const& frequencies, bool interleaved,
                                real position) {
  std::size_t const pairs = frequencies.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    real& one = x[interleaved ? 2 * i : i];
    real& two = x[interleaved ? 2 * i + 1 : i + pairs];
    real const angle = position * frequencies[i];
    real const turned_one = one * std::cos(angle) - two * std::sin(angle);
    two = two * std::cos(angle) + one * std::sin(angle);
    one = turned_one;
  }
  return x;
}

}  // namespace oracle
