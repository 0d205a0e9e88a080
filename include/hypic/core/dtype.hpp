// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hypic::inline v0 {

/// The element types of rows, keys and values. The host back end computes on f32 alone.
enum class dtype : std::uint8_t { f32, f16, bf16 };

/// Bytes of one element.
constexpr std::int64_t size_of(dtype type) noexcept { return type == dtype::f32 ? 4 : 2; }

}  // namespace hypic::inline v0
