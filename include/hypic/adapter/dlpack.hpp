// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hypic/core/status.hpp"
#include "hypic/core/tensor_view.hpp"

/// Views from and to DLPack tensors, without including DLPack: the functions work on any struct that has DLTensor's
/// members (data, device, ndim, dtype, shape, strides, byte_offset). Source: dmlc/dlpack, dlpack.h, version 1.
namespace hypic::inline v0 {

/// DLPack's names for what the host back end reads.
struct dlpack_codes {
  static constexpr int cpu = 1;        ///< device_type of the host's memory
  static constexpr int cuda_host = 3;  ///< of pinned memory, which the host reads too
  static constexpr int float_code = 2;
};

/// A view on a DLPack tensor's memory, which it does not own.
/// Errors: invalid_shape (another rank, an extent below 0), unsupported (not fp32 without lanes, or not in memory that
///         the host reads), invalid_argument (elements without data, a byte offset that is no whole number of floats).
template <int Rank, class DLTensor>
result<tensor_view<float, Rank>> from_dlpack(DLTensor const& from) noexcept {
  if (from.ndim != Rank) return status{status::invalid_shape, "ndim", from.ndim, status::relation::equal_to, Rank};
  if (from.dtype.code != dlpack_codes::float_code) {
    return status{status::unsupported, "dtype.code", from.dtype.code, status::relation::equal_to,
                  dlpack_codes::float_code};
  }
  if (from.dtype.bits != 32) {
    return status{status::unsupported, "dtype.bits", from.dtype.bits, status::relation::equal_to, 32};
  }
  if (from.dtype.lanes != 1) {
    return status{status::unsupported, "dtype.lanes", from.dtype.lanes, status::relation::equal_to, 1};
  }
  auto const device = static_cast<int>(from.device.device_type);
  if (device != dlpack_codes::cpu && device != dlpack_codes::cuda_host) {
    return status{status::unsupported, "device.device_type", device, status::relation::equal_to, dlpack_codes::cpu};
  }
  if (from.byte_offset % sizeof(float) != 0) {
    return status{status::invalid_argument, "byte_offset", static_cast<std::int64_t>(from.byte_offset),
                  status::relation::multiple_of, sizeof(float)};
  }

  tensor_view<float, Rank> view;
  std::int64_t step = 1;  // where strides are not given, the tensor is dense and row-major
  for (int d = Rank - 1; d >= 0; --d) {
    auto const at = static_cast<std::size_t>(d);
    view.extent[at] = from.shape[d];
    if (view.extent[at] < 0) {
      return status{status::invalid_shape, "shape", view.extent[at], status::relation::at_least, 0}.in(
          status::measure::extent, d);
    }
    view.stride[at] = from.strides == nullptr ? step : from.strides[d];
    step *= view.extent[at];
  }
  if (from.data == nullptr && view.size() > 0) return status{status::invalid_argument, "data"};
  if (from.data != nullptr) {
    view.data = reinterpret_cast<float*>(static_cast<std::byte*>(from.data) + from.byte_offset);
  }
  return view;
}

/// A DLPack tensor on a view's memory. Its shape and strides point into `view`, which outlives it.
template <class DLTensor, class T, int Rank>
DLTensor to_dlpack(tensor_view<T, Rank>& view) noexcept {
  static_assert(std::is_same_v<T, float>, "DLPack has no constant data");
  DLTensor to{};
  to.data = view.data;
  to.device.device_type = static_cast<decltype(to.device.device_type)>(dlpack_codes::cpu);
  to.device.device_id = 0;
  to.ndim = Rank;
  to.dtype.code = dlpack_codes::float_code;
  to.dtype.bits = 32;
  to.dtype.lanes = 1;
  to.shape = view.extent.data();
  to.strides = view.stride.data();
  to.byte_offset = 0;
  return to;
}

}  // namespace hypic::inline v0
