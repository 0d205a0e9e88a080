// SPDX-License-Identifier: Apache-2.0
#include "cuda/core/calls.hpp"

namespace hypic::inline v0 {

result<device_limits> current_device() noexcept {
  int device = 0;
  int major = 0;
  int minor = 0;
  device_limits limits;
  if (auto const s = outcome_of(cudaGetDevice(&device)); s != status::ok) return s;
  if (auto const s = outcome_of(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
      s != status::ok)
    return s;
  if (auto const s = outcome_of(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
      s != status::ok)
    return s;
  if (auto const s =
          outcome_of(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, device));
      s != status::ok)
    return s;
  limits.compute_capability = 10 * major + minor;
  return limits;
}

result<bool> takes_hopper(device_exec const& ex, device_limits const& limits, bool shape_allows) noexcept {
  bool const can = limits.compute_capability == 90;
  switch (ex.path) {
    case kernel_path::automatic: return can && shape_allows;
    case kernel_path::generic: return false;
    case kernel_path::hopper: break;
  }
  if (!can)
    return status{status::unsupported, "ex.path: hopper, compute capability", limits.compute_capability,
                  status::relation::equal_to, 90};
  if (!shape_allows) return status{status::unsupported, "ex.path: hopper, for this plan"};
  return true;
}

}  // namespace hypic::inline v0
