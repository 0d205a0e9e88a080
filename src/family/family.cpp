// SPDX-License-Identifier: Apache-2.0
#include "hypic/family/family.hpp"

#include <utility>

namespace hypic::inline v0 {

status validate(state_dims const& dims) noexcept {
  std::pair<char const*, std::int32_t> const members[] = {{"dims.key_heads", dims.key_heads},
                                                          {"dims.value_heads", dims.value_heads},
                                                          {"dims.key_dim", dims.key_dim},
                                                          {"dims.value_dim", dims.value_dim}};
  for (auto const& [name, value] : members) {
    if (value < 1) return {status::invalid_shape, name, value, status::relation::at_least, 1};
  }
  // Far beyond any model, and far below where sizes of states and of scratch would leave 64 bits.
  constexpr std::int32_t most = 1 << 20;
  for (auto const& [name, value] : {members[2], members[3]}) {
    if (value > most) return {status::invalid_shape, name, value, status::relation::at_most, most};
  }
  if (dims.value_heads % dims.key_heads != 0) {
    return {status::invalid_shape, "dims.value_heads", dims.value_heads, status::relation::multiple_of, dims.key_heads};
  }
  return status::ok;
}

}  // namespace hypic::inline v0
