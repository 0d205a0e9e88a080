// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hypic/algebra/rotation.hpp"
#include "support/layer_data.hpp"
#include "support/rotation_oracle.hpp"

namespace hypic::test {

/// One kind of rotary embedding: the library's, and the oracle's beside it.
struct rotary_case {
  std::string text;
  std::int64_t dim = 0;  ///< of the head; rotary is what the embedding says
  rotary_embedding rotary;
  std::vector<oracle::real> frequencies;

  bool interleaved() const { return rotary.pairing == rotary_pairing::interleaved; }

  /// Vectors packed one after the other, each turned to `position`.
  std::vector<double> turned(std::vector<float> const& vectors, oracle::real position) const {
    std::vector<double> out;
    auto const width = static_cast<std::ptrdiff_t>(dim);
    for (auto at = vectors.begin(); at != vectors.end(); at += width) {
      for (auto const x : oracle::turned({at, at + width}, frequencies, interleaved(), position)) {
        out.push_back(static_cast<double>(x));
      }
    }
    return out;
  }
};

/// {rotate-half, interleaved} x {full, partial} x {plain, linear, NTK, YaRN}.
inline std::vector<rotary_case> rotary_cases() {
  // Whole numbers, which are the same in the precision of either side.
  constexpr int base = 10'000;
  constexpr int factor = 4;
  constexpr int original = 4096;
  struct shape {
    char const* text;
    std::int64_t dim;
    std::int64_t rotary_dim;
  };
  std::vector<rotary_case> cases;
  for (auto const pairing : {rotary_pairing::rotate_half, rotary_pairing::interleaved}) {
    for (shape const& head : {shape{"full", 64, 64}, shape{"partial", 80, 32}}) {
      auto const add = [&](char const* kind, result<std::vector<double>> made, std::vector<oracle::real> wanted) {
        REQUIRE(made.has_value());
        auto const* const pairs = pairing == rotary_pairing::interleaved ? "interleaved " : "rotate-half ";
        cases.push_back(
            {std::string(pairs) + head.text + ' ' + kind, head.dim, {std::move(*made), pairing}, std::move(wanted)});
      };
      auto const d = head.rotary_dim;
      auto const pairs = static_cast<std::size_t>(d / 2);
      add("plain", plain_frequencies(d, base), oracle::plain_frequencies(pairs, base));
      add("linear", linear_frequencies(d, base, factor), oracle::linear_frequencies(pairs, base, factor));
      add("NTK", ntk_frequencies(d, base, factor), oracle::ntk_frequencies(pairs, base, factor));
      add("YaRN", yarn_frequencies(d, base, factor, original), oracle::yarn_frequencies(pairs, base, factor, original));
    }
  }
  return cases;
}

}  // namespace hypic::test
