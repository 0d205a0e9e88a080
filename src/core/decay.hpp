// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace hypic::inline v0 {

/// The decay exp(log) of a sum of log gates, log <= 0, to 1e-12 relative. Exactly 1 at 0; exactly 0 below -709, and of
/// a NaN. A decay is applied once a chunk for as long as a sequence lasts, so that its error adds up: fp32 will not do.
/// Without a branch or a call, so that a loop over it vectorises.
[[gnu::always_inline]] inline double decay_of(double log) noexcept {
  constexpr double lowest = -709.0;  // nearest power of two: -1023, whose exponent field is that of 0
  constexpr double log2_e = 0x1.71547652b82fep+0;
  constexpr double ln2_high = 0x1.62e42fee00000p-1;  // short: its products with whole numbers are exact
  constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  constexpr double round = 0x1.8p52;  // a sum with it is rounded to a whole number, which its low bits hold

  double const bounded = log > lowest ? log : lowest;
  double const shifted = bounded * log2_e + round;
  double const whole = shifted - round;
  double const r = (bounded - whole * ln2_high) - whole * ln2_low;

  // exp(r) on [-ln2 / 2, ln2 / 2]: Taylor's series up to r^10 / 10!.
  double p = 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;

  auto const power_of_two = (std::bit_cast<std::uint64_t>(shifted) + 1023u) << 52;
  return p * std::bit_cast<double>(power_of_two);
}

}  // namespace hypic::inline v0
