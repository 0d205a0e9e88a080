// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

/// What one half of a program sees of the hypic that it was compiled against.
struct side {
  std::array<int, 3> header{};
  std::array<int, 3> library{};
  float composed = 0.0f;
};

side side_0();
side side_1();
