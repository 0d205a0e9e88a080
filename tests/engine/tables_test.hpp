// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tables/tables.hpp"

namespace engine_test {

/// The shipped checkpoints and texts, loaded once a program.
inline hypic_tables::input_data const& data() {
  static auto const loaded = hypic_tables::load_data(HYPIC_ENGINE_DATA);
  return loaded;
}

}  // namespace engine_test
