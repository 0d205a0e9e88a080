// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "hypic/core/status.hpp"
#include "hypic/cuda/exec.hpp"

namespace hypic::inline v0 {

/// Whether a call was lent what it needs.
constexpr status expect_exec(device_exec const& ex, std::int64_t workspace_bytes) noexcept {
  if (ex.stream.handle() == nullptr) return {status::invalid_argument, "ex.stream"};
  auto const lent = static_cast<std::int64_t>(ex.workspace.size());
  if (lent < workspace_bytes)
    return {status::workspace_too_small, "ex.workspace", lent, status::relation::at_least, workspace_bytes};
  return status::ok;
}

/// Tells the host's observer, where there is one, of a call: counts it, and is its range.
[[nodiscard]] inline watched_range tell(device_exec const& ex, char const* name) noexcept {
  if (ex.watch != nullptr) ex.watch->count(name, 1);
  return {ex.watch, name};
}

/// The run-time's answer as a status.
constexpr status outcome_of(cudaError_t error) noexcept {
  if (error == cudaSuccess) return status::ok;
  return {status::backend_failure, "CUDA error", static_cast<std::int64_t>(error), status::relation::equal_to, 0};
}

/// Properties of the current device that choose kernels and grids. Read at each call: no state, and no synchronisation.
struct device_limits {
  int compute_capability = 0;  ///< 90 for 9.0
  int multiprocessors = 0;
};
result<device_limits> current_device() noexcept;

/// Whether the Hopper path serves a call, which it can where the shape allows it and the device is of that kind; or why
/// the path that was asked for cannot.
result<bool> takes_hopper(device_exec const& ex, device_limits const& limits, bool shape_allows) noexcept;

}  // namespace hypic::inline v0
