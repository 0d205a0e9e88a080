// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace hypic::inline v0 {

/// exp(x) for x <= 0, to 1 ulp. Exactly 1 at 0; 0 below -87, where the result would soon be subnormal; NaN of NaN.
/// Without a branch or a call, so that a loop over it vectorises.
inline float exp_nonpositive(float x) noexcept {
  constexpr float lowest = -87.0f;
  constexpr float log2_e = 1.44269504f;
  constexpr float ln2_high = 0.693359375f;  // nine bits: its products with whole numbers are exact
  constexpr float ln2_low = -2.12194440e-4f;
  constexpr float round = 12582912.0f;  // 1.5 * 2^23: a sum with it is rounded to a whole number, held by its low bits

  float const bounded = x < lowest ? lowest : x;
  float const shifted = bounded * log2_e + round;
  float const whole = shifted - round;
  float const r = (bounded - whole * ln2_high) - whole * ln2_low;

  // exp(r) on [-ln2 / 2, ln2 / 2]: the coefficients of Cephes' expf.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;

  auto const exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round);
  float const power_of_two = std::bit_cast<float>((exponent + 127u) << 23);
  return x < lowest ? 0.0f : p * power_of_two;
}

}  // namespace hypic::inline v0
