// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace hypic::inline v0 {

/// log(sigmoid(x)), without overflow for any finite x: the log gate of gated linear attention before its divisor.
inline float log_sigmoid(float x) noexcept {
  return x < 0.0f ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
}

/// log(log(1 + exp(x))), without overflow or log(0) for any finite x.
inline double log_softplus(double x) noexcept {
  if (x < -40.0) return x;  // softplus(x) = exp(x) to within an ulp
  return std::log(x > 40.0 ? x : std::log1p(std::exp(x)));
}

/// The log gate of Gated DeltaNet and Mamba-2, -exp(a_log) softplus(x), as one exponential: exp(a_log) may overflow
/// where softplus(x) underflows, and their product would be a NaN. At worst -inf, a reset. Source: arXiv:2412.06464.
inline float softplus_log_gate(float a_log, float x) noexcept {
  return static_cast<float>(-std::exp(static_cast<double>(a_log) + log_softplus(x)));
}

}  // namespace hypic::inline v0
