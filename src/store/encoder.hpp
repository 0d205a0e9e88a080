// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hypic::inline v0 {

/// Writes fields for a digest, each as its length in bytes and then its bytes, so that no two lists of fields share an
/// encoding. Lengths and numbers are 64-bit little-endian, whatever the machine.
class encoder {
 public:
  void bytes(std::span<std::byte const> field) {
    append(field.size(), 8);
    written_.insert(written_.end(), field.begin(), field.end());
  }
  void text(std::string_view field) { bytes(std::as_bytes(std::span{field})); }

  template <std::integral T>
  void number(T value) {
    append(8, 8);
    append(static_cast<std::uint64_t>(value), 8);
  }
  void number(double value) { number(std::bit_cast<std::uint64_t>(value)); }

  /// One field of 32-bit integers.
  void numbers(std::span<std::int32_t const> field) {
    append(4 * field.size(), 8);
    for (auto const value : field) append(static_cast<std::uint32_t>(value), 4);
  }
  /// One field of doubles.
  void numbers(std::span<double const> field) {
    append(8 * field.size(), 8);
    for (auto const value : field) append(std::bit_cast<std::uint64_t>(value), 8);
  }

  std::span<std::byte const> written() const noexcept { return written_; }

 private:
  void append(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) written_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
  }

  std::vector<std::byte> written_;
};

}  // namespace hypic::inline v0
