// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "hypic/algebra/rotation.hpp"

namespace hypic::inline v0 {

/// Dimensions that a turn moves; none for a null or an identity one.
inline std::int64_t turned_dims(rotation const* turn) noexcept {
  return turn == nullptr ? 0 : 2 * static_cast<std::int64_t>(turn->cosine.size());
}

/// Calls fn(first, second, cosine, sine) for each pair of dimensions that a turn moves:
/// first' = cosine first - sine second, second' = sine first + cosine second.
template <class Fn>
void for_each_pair(rotation const* turn, Fn&& fn) {
  auto const pairs = turned_dims(turn) / 2;
  for (std::int64_t i = 0; i < pairs; ++i) {
    bool const half = turn->pairing == rotary_pairing::rotate_half;
    auto const index = static_cast<std::size_t>(i);
    fn(half ? i : 2 * i, half ? i + pairs : 2 * i + 1, static_cast<double>(turn->cosine[index]),
       static_cast<double>(turn->sine[index]));
  }
}

}  // namespace hypic::inline v0
