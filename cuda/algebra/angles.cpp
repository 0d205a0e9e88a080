// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/angles.hpp"

#include <algorithm>
#include <cstdint>

namespace hypic::inline v0 {

status write_angles(rotation const& turn, std::span<float> to) noexcept {
  auto const pairs = static_cast<std::int64_t>(turn.cosine.size());
  auto const sines = static_cast<std::int64_t>(turn.sine.size());
  auto const room = static_cast<std::int64_t>(to.size());
  if (sines != pairs) return {status::invalid_shape, "turn", sines, status::relation::equal_to, pairs};
  if (room != 2 * pairs) return {status::invalid_shape, "to", room, status::relation::equal_to, 2 * pairs};
  std::ranges::copy(turn.sine, std::ranges::copy(turn.cosine, to.begin()).out);
  return status::ok;
}

}  // namespace hypic::inline v0
