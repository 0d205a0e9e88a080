// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hypic/core/dtype.hpp"

/// The 16-bit types on a host: rounded to nearest, ties to even.
namespace hypic::test {

inline std::uint16_t to_bf16(float x) {
  auto const bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float from_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

inline std::uint16_t to_f16(float x) {
  auto const bits = std::bit_cast<std::uint32_t>(x);
  auto const sign = bits >> 16 & 0x8000u;
  auto const magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0x7c00u;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: a whole multiple of 2^-24
    half = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::fabs(x), 24)));
  } else if (magnitude < 0x477ff000u) {  // what does not round to 2^16
    half = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
  }
  return static_cast<std::uint16_t>(sign | half);
}

inline float from_f16(std::uint16_t x) {
  int const exponent = x >> 10 & 0x1f;
  auto const fraction = static_cast<float>(x & 0x3ff);
  float magnitude = std::ldexp(exponent == 0 ? fraction : fraction + 1024.0f, (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 0x1f) magnitude = fraction == 0.0f ? INFINITY : NAN;
  return (x & 0x8000) != 0 ? -magnitude : magnitude;
}

inline void encode(dtype type, float x, std::byte* to) {
  if (type == dtype::f32) {
    std::memcpy(to, &x, sizeof x);
    return;
  }
  auto const half = type == dtype::f16 ? to_f16(x) : to_bf16(x);
  std::memcpy(to, &half, sizeof half);
}

inline float decode(dtype type, std::byte const* from) {
  float x = 0.0f;
  std::uint16_t half = 0;
  if (type == dtype::f32) {
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  std::memcpy(&half, from, sizeof half);
  return type == dtype::f16 ? from_f16(half) : from_bf16(half);
}

/// The nearest number that the type holds.
inline float rounded(dtype type, float x) {
  std::byte bytes[sizeof x];
  encode(type, x, bytes);
  return decode(type, bytes);
}

}  // namespace hypic::test
