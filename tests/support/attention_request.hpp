// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "support/layer_data.hpp"

namespace hypic::test {

using positions = std::vector<std::int64_t>;

/// One request of an attention test: which rows it forwards, and how many keys its memory holds.
struct request {
  positions rows;
  std::int64_t keys = 0;
};

inline positions consecutive(std::int64_t first, std::int64_t count) {
  positions rows(to_index(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

}  // namespace hypic::test
