// SPDX-License-Identifier: Apache-2.0
// Plain C++: neither the CUDA language nor a header of CUDA's. It needs no device: what it asks for is refused first.
#include <cstdio>
#include <string>

#include "hypic/cuda/fold_chains.hpp"

int main() {
  auto const plan = hypic::plan_chains(hypic::operator_form::dense, {1, 1, 128, 128}, 1, false);
  auto const outcome = hypic::fold_chains(plan, {}, {.stream = hypic::stream_ref{nullptr}});
  std::printf("%s\n", hypic::message(outcome).c_str());
}
