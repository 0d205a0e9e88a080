// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hypic/core/observer.hpp"
#include "hypic/core/tensor_view.hpp"

struct CUstream_st;  // what the CUDA run-time's cudaStream_t points to

namespace hypic::inline v0 {

/// Memory that the device addresses.
struct device_space {};
template <class T, int Rank>
using device_view = tensor_view<T, Rank, device_space>;

/// A stream of the host's. It has no default: the work of a call belongs to one stream, which the host names.
class stream_ref {
 public:
  constexpr explicit stream_ref(CUstream_st* handle) noexcept : handle_(handle) {}
  constexpr CUstream_st* handle() const noexcept { return handle_; }

 private:
  CUstream_st* handle_;
};

/// Which kernels serve a call. A part of what makes the bits: name it in the model fingerprint.
enum class kernel_path : std::uint8_t {
  automatic,  ///< the fastest that the device and the plan's shape allow
  generic,    ///< those of sm_80 and later
  hopper,     ///< those of sm_90a; `unsupported` where the device or the shape has none
};

/// What a host lends to one call of the CUDA back end. Its type selects the back end.
/// A call queues work on `stream` and returns. It neither allocates nor synchronises, so it can be captured in a CUDA
/// graph, and replayed after the tables that it reads have changed. Scratch, whose size the plan states, is device memory
/// of any content and alignment. The device is the calling thread's current one.
/// Errors of every call: invalid_argument (a null stream), backend_failure (`found` is the CUDA run-time's error).
struct device_exec {
  stream_ref stream;
  std::span<std::byte> workspace{};
  kernel_path path = kernel_path::automatic;
  observer* watch = nullptr;  ///< told of each call; may be null
};

}  // namespace hypic::inline v0
