// SPDX-License-Identifier: Apache-2.0
#include "side.hpp"

#include "hypic/algebra/summary.hpp"
#include "hypic/core/version.hpp"

side SIDE() {
  float operators[3]{};
  float end_states[3]{2.0f, 3.0f, 0.0f};
  auto const summary = [&](int i) {
    return hypic::summary_view{hypic::dense_view(operators + i, 1, 1), hypic::dense_view(end_states + i, 1, 1, 1)};
  };
  auto const composed = hypic::compose<hypic::retnet>({1, 1, 1, 1}, summary(1), summary(0), summary(2), {});
  if (composed != hypic::status::ok) return {};

  auto const numbers = [](hypic::version const& v) { return std::array{v.major, v.minor, v.patch}; };
  return {numbers(hypic::header_version), numbers(hypic::library_version()), end_states[2]};
}
