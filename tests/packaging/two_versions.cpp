// SPDX-License-Identifier: Apache-2.0
// Each half of this program has to reach the library that it was compiled against.
#include <cstdio>

#include "side.hpp"

int main() {
  side const first = side_0();
  side const second = side_1();
  if (first.header != first.library || second.header != second.library) {
    std::puts("a half reached the other half's library");
    return 1;
  }
  if (first.library == second.library) {
    std::puts("one version only");
    return 1;
  }
  if (first.composed != 5.0f || second.composed != 5.0f) {
    std::puts("a half computed something else");
    return 1;
  }
  std::printf("versions %d.%d.%d and %d.%d.%d in one process\n", first.library[0], first.library[1], first.library[2],
              second.library[0], second.library[1], second.library[2]);
}
