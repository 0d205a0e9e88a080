// SPDX-License-Identifier: Apache-2.0
#include "engine/serving_test.hpp"

namespace engine_test {

std::vector<named_model> const& models_under_test() {
  static auto const models = [] {
    std::vector<named_model> all;
    for (std::string const name : {"retnet", "gla", "gdn"}) all.push_back(make_named(name, shipped_checkpoint(name)));
    return all;
  }();
  return models;
}

}  // namespace engine_test
