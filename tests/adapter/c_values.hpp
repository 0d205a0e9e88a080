// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hypic.h"

/// What tests of the C API share: statuses in words, tensors and scratch with memory of their own.
namespace hypic::test {

inline std::string words(hypic_status outcome) {
  std::string text(hypic_message(outcome, nullptr, 0) + 1, '\0');
  hypic_message(outcome, text.data(), text.size());
  text.pop_back();
  return text;
}

/// A tensor with memory of its own.
struct values {
  std::vector<std::int64_t> extent;
  std::vector<float> data;

  values(std::vector<std::int64_t> shape, float fill) : extent(std::move(shape)), data(count(), fill) {}
  values(std::vector<std::int64_t> shape, std::mt19937& random) : extent(std::move(shape)), data(count()) {
    std::normal_distribution<float> normal;
    for (auto& x : data) x = normal(random);
  }
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::accumulate(extent.begin(), extent.end(), std::int64_t{1}, std::multiplies<>()));
  }
  hypic_tensor in_c(std::int64_t first = 0, std::int64_t rows = -1) {
    hypic_tensor made{};
    made.rank = static_cast<std::int32_t>(extent.size());
    std::int64_t stride = 1;
    for (auto d = extent.size(); d-- > 0; stride *= extent[d]) {
      made.extent[d] = extent[d];
      made.stride[d] = stride;
    }
    made.data = data.data() + first * made.stride[0];
    if (rows >= 0) made.extent[0] = rows;
    return made;
  }
  bool operator==(values const& other) const {
    return extent == other.extent && std::memcmp(data.data(), other.data.data(), data.size() * sizeof(float)) == 0;
  }
};

struct lent {
  std::vector<std::byte> memory;
  hypic_exec exec{};
  hypic_exec const* get() const { return &exec; }
  explicit lent(std::int64_t bytes) : memory(static_cast<std::size_t>(bytes)) {
    exec = {sizeof exec, memory.data(), memory.size(), 2};
  }
};

}  // namespace hypic::test
