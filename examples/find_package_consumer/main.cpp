// SPDX-License-Identifier: Apache-2.0
// The smallest program on an installed hypic: two runs of tokens, each summed up alone, become one.
#include <cstdint>
#include <cstdio>

#include "hypic/algebra/summary.hpp"
#include "hypic/core/version.hpp"
#ifdef WITH_STORE
#include "hypic/store/key.hpp"
#endif

/// What a run of tokens does to a state of one element: S becomes exp(log_decay) S + end_state.
struct run_summary {
  float log_decay = 0.0f;
  float end_state = 0.0f;

  hypic::summary_view view() { return {hypic::dense_view(&log_decay, 1, 1), hypic::dense_view(&end_state, 1, 1, 1)}; }
};

int main() {
  hypic::state_dims const dims{.key_heads = 1, .value_heads = 1, .key_dim = 1, .value_dim = 1};
  run_summary earlier{-1.0f, 2.0f};
  run_summary later{-2.0f, 5.0f};
  run_summary both;
  if (auto const s = hypic::compose<hypic::retnet>(dims, later.view(), earlier.view(), both.view(), {});
      s != hypic::status::ok) {
    std::fprintf(stderr, "%s\n", hypic::message(s).c_str());
    return 1;
  }
  auto const version = hypic::library_version();
  std::printf("hypic %d.%d.%d: S becomes exp(%.0f) S + %.3f\n", version.major, version.minor, version.patch,
              static_cast<double>(both.log_decay), static_cast<double>(both.end_state));

#ifdef WITH_STORE
  std::int32_t const tokens[]{104, 121, 112, 105, 99};
  auto const key = hypic::make_record_key({.tokens = tokens, .model = "a model"});
  if (!key) {
    std::fprintf(stderr, "%s\n", hypic::message(key.error()).c_str());
    return 1;
  }
  std::printf("record %s\n", hypic::to_hex(key->bytes).c_str());
#endif
}
