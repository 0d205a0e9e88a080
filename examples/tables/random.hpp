// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace hypic_tables {

/// Seeded numbers, the same on every machine. Source: SplitMix64 (Steele, Lea and Flood, 2014).
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    auto mixed = state_ += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }

  /// In [0, bound), bound >= 1.
  std::int64_t below(std::int64_t bound) noexcept {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

  /// In [least, most).
  double uniform(double least, double most) noexcept {
    return least + (most - least) * static_cast<double>(next() >> 11) * 0x1p-53;
  }

  template <class T>
  void shuffle(std::vector<T>& items) noexcept {
    for (auto left = items.size(); left > 1; --left)
      std::swap(items[left - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(left)))]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace hypic_tables
