// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hypic::inline v0 {

template <int Bytes>
__device__ inline bool is_aligned(void const* address) {
  return reinterpret_cast<std::uintptr_t>(address) % Bytes == 0;
}

/// Reads the first `count` of four floats; the others are 0. `aligned`: all four can be read at once.
__device__ inline void load(float const* from, int count, bool aligned, float (&to)[4]) {
  if (aligned) {
    auto const all = __ldg(reinterpret_cast<float4 const*>(from));
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
  } else {
    for (int i = 0; i < 4; ++i) to[i] = i < count ? __ldg(from + i) : 0.0f;
  }
}

/// Lets a kernel take that much dynamic shared memory.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, std::size_t bytes) noexcept {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace hypic::inline v0
