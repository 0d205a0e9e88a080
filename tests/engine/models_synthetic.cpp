// SPDX-License-Identifier: Apache-2.0
#include "engine/serving_test.hpp"

namespace engine_test {

std::vector<named_model> const& models_under_test() {
  using hypic_engine::model_family;
  static auto const models = [] {
    synthetic::options base{.vocab_size = 256, .hidden_size = 32, .num_hidden_layers = 4, .intermediate_size = 48};
    base.max_position_embeddings = 1024;
    base.attention_layers = {1, 3};
    std::vector<named_model> all;
    auto const add = [&](std::string const& name, model_family family, auto const& change) {
      auto what = base;
      what.family = family;
      change(what);
      all.push_back(make_named(name, synthetic_checkpoint(what)));
    };
    add("retnet", model_family::retnet, [](auto& o) { o.expand_v = 2, o.qkv_bias = true; });
    add("gla", model_family::gla, [](auto& o) { o.num_heads = 4, o.num_kv_heads = 2, o.expand_k = 0.5; });
    add("gated_deltanet", model_family::gated_deltanet, [](auto& o) { o.num_v_heads = 4, o.allow_neg_eigval = true; });
    add("gated_deltanet without convolution", model_family::gated_deltanet, [](auto& o) { o.use_short_conv = false; });
    return all;
  }();
  return models;
}

}  // namespace engine_test
