// SPDX-License-Identifier: Apache-2.0
#include "hypic/cuda/fold_chains.hpp"

#include <catch2/catch.hpp>

#include "cuda/device.hpp"
#include "support/layer_data.hpp"

using namespace hypic;
using namespace hypic::test;

TEST_CASE("a call without a stream is refused", "[cuda][fold_chains]") {
  auto const plan = plan_chains(operator_form::dense, {1, 1, 16, 16}, 1, false);
  CHECK(fold_chains(plan, {}, {stream_ref{nullptr}}) == status::invalid_argument);
}
