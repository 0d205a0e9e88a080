// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hypic/core/dtype.hpp"
#include "support/layer_data.hpp"

/// The element types of keys and values on the host's side, made from what defines them: no CUDA header.
namespace hypic::test {

/// The unit in the last place of `type` at x.
inline double unit_at(dtype type, double x) {
  int const digits = type == dtype::f32 ? 23 : type == dtype::f16 ? 10 : 7;
  int const least = type == dtype::f16 ? -14 : -126;  // exponent of the smallest normal number
  int const exponent = x == 0.0 ? least : std::max(std::ilogb(x), least);
  return std::ldexp(1.0, exponent - digits);
}

/// x, finite, rounded to nearest even; beyond the largest number nothing is promised.
inline float rounded_to(dtype type, double x) {
  double const unit = unit_at(type, x);
  return static_cast<float>(std::nearbyint(x / unit) * unit);
}

/// The bits of a number that `type` has.
inline std::uint16_t bits_of(dtype type, float x) {
  auto const wide = std::bit_cast<std::uint32_t>(x);
  if (type == dtype::bf16) return static_cast<std::uint16_t>(wide >> 16);
  auto const sign = static_cast<std::uint32_t>(std::signbit(x)) << 15;
  float const size = std::abs(x);
  if (size < 0x1p-14f) return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(size * 0x1p24f));
  return static_cast<std::uint16_t>(sign | ((std::bit_cast<std::uint32_t>(size) - (112u << 23)) >> 13));
}

inline float value_of(dtype type, std::uint16_t bits) {
  if (type == dtype::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  std::uint32_t const size = bits & 0x7fffu;
  float const value = size >= 0x7c00u  ? quiet_nan  // an infinity too: neither is expected
                      : size < 0x0400u ? static_cast<float>(size) * 0x1p-24f
                                       : std::bit_cast<float>((size << 13) + (112u << 23));
  return (bits & 0x8000u) != 0 ? -value : value;
}

/// An image of memory, every byte 0xff until it is written: NaN in each of the types, as device memory is poisoned.
class stored_image {
 public:
  stored_image() = default;
  stored_image(dtype type, std::int64_t elements)
      : type_(type), memory_(to_index(elements * size_of(type)), std::byte{0xff}) {}

  std::vector<std::byte>& bytes() { return memory_; }
  std::vector<std::byte> const& bytes() const { return memory_; }

  float get(std::int64_t element) const {
    if (type_ == dtype::f32) return copied<float>(element);
    return value_of(type_, copied<std::uint16_t>(element));
  }
  /// `x` is a number of the type.
  void set(std::int64_t element, float x) {
    if (type_ == dtype::f32) return copy(element, x);
    copy(element, bits_of(type_, x));
  }
  void poison(std::int64_t element) {
    std::fill_n(memory_.begin() + element * size_of(type_), size_of(type_), std::byte{0xff});
  }
  bool all_poison() const {
    return std::all_of(memory_.begin(), memory_.end(), [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  template <class T>
  T copied(std::int64_t element) const {
    T value;
    std::memcpy(&value, memory_.data() + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  void copy(std::int64_t element, T value) {
    std::memcpy(memory_.data() + element * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }
  dtype type_ = dtype::f32;
  std::vector<std::byte> memory_;
};

}  // namespace hypic::test
