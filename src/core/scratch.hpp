// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hypic::inline v0 {

/// Scratch is lent at any alignment; every array in it starts on its own cache line.
inline constexpr std::int64_t scratch_alignment = 64;

/// Bytes that `count` elements of T take in a `scratch`, alignment included.
template <class T>
constexpr std::int64_t scratch_bytes(std::int64_t count) noexcept {
  auto const bytes = count * static_cast<std::int64_t>(sizeof(T));
  return (bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
}

/// Hands out arrays of a lent buffer, front to back. A plan that promises workspace_bytes adds `scratch_alignment` once
/// for a misaligned start. What it hands out is uninitialised.
class scratch {
 public:
  explicit scratch(std::span<std::byte> memory) noexcept {
    void* start = memory.data();
    std::size_t space = memory.size();
    next_ = static_cast<std::byte*>(std::align(static_cast<std::size_t>(scratch_alignment), 0, start, space));
  }

  template <class T>
  T* take(std::int64_t count) noexcept {
    auto* const array = next_;
    next_ += scratch_bytes<T>(count);
    return reinterpret_cast<T*>(array);
  }

 private:
  std::byte* next_ = nullptr;
};

}  // namespace hypic::inline v0
