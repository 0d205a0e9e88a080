// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/laws.hpp"

#include <algorithm>
#include <cmath>

namespace hypic::inline v0::laws_detail {
namespace {

template <class T>
double relative_distance(std::span<T const> found, std::span<T const> wanted) noexcept {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto const w = static_cast<double>(wanted[i]);
    auto const d = static_cast<double>(found[i]) - w;
    difference += d * d;
    size += w * w;
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
}

}  // namespace

double distance(std::span<double const> found, std::span<double const> wanted) noexcept {
  return relative_distance(found, wanted);
}
double distance(std::span<float const> found, std::span<float const> wanted) noexcept {
  return relative_distance(found, wanted);
}

void keep_worst(double& worst, double error) noexcept {
  if (!std::isnan(worst) && !(error <= worst)) worst = error;
}

double sample(std::int64_t i) noexcept { return std::sin(1.0 + 12.9898 * static_cast<double>(i)); }

}  // namespace hypic::inline v0::laws_detail
