// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/config.hpp"
#include "engine/engine_test.hpp"
#include "engine/files.hpp"
#include "engine/safetensors.hpp"

namespace {

using engine_test::refusal;
using hypic_engine::model_config;
using hypic_engine::model_family;
using nlohmann::json;

std::vector<std::string> const families{"retnet", "gla", "gated_deltanet"};

model_config parse(json const& config) { return hypic_engine::parse_config(config.dump(), "config"); }

model_config parse(std::string const& family, json fields) {
  fields["model_type"] = family;
  return parse(fields);
}

std::string parse_refusal(std::string const& family, json const& fields) {
  return refusal([&] { parse(family, fields); });
}

/// A small valid attention entry with some fields set.
json attn(json const& fields = json::object()) {
  json out{{"layers", {1}}, {"num_heads", 8}};
  out.update(fields);
  return {{"attn", out}};
}

TEST_CASE("absent fields have the defaults of flash-linear-attention's classes") {
  auto const retnet = parse("retnet", json::object());
  CHECK(retnet.family == model_family::retnet);
  CHECK(retnet.layers == 24);
  CHECK(retnet.intermediate_size == 2816);  // 2048 * 2 * 2 / 3, up to a multiple of 256
  CHECK(retnet.linear.state_heads == 8);
  CHECK(retnet.linear.key_dim == 256);
  CHECK(retnet.linear.value_dim == 512);

  auto const gla = parse("gla", json::object());
  CHECK(gla.layers == 24);
  CHECK(gla.intermediate_size == 5632);
  CHECK(gla.linear.state_heads == 4);
  CHECK(gla.linear.key_dim == 256);
  CHECK(gla.linear.value_dim == 512);
  CHECK(!gla.linear.clamp_min);

  auto const gdn = parse("gated_deltanet", json::object());
  CHECK(gdn.layers == 21);
  CHECK(gdn.intermediate_size == 5632);
  CHECK(gdn.linear.key_heads == 6);
  CHECK(gdn.linear.state_heads == 6);
  CHECK(gdn.linear.key_dim == 256);
  CHECK(gdn.linear.value_dim == 512);
  CHECK(gdn.linear.conv_size == 4);
  CHECK(!gdn.linear.negative_eigenvalues);

  for (auto const& config : {retnet, gla, gdn}) {
    CHECK(config.vocab_size == 32000);
    CHECK(config.hidden_size == 2048);
    CHECK(config.max_position_embeddings == 2048);
    CHECK(config.norm_eps == 1e-6);
    CHECK(!config.tie_word_embeddings);
    CHECK(config.linear.output_gate);
    CHECK(config.linear.norm_weight);
    CHECK(config.linear.fused_norm);
    CHECK(config.attention == hypic_engine::attention_config{});
  }
}

TEST_CASE("fields that all families share are read") {
  for (auto const& family : families) {
    auto const config = parse(family, {{"vocab_size", 100},
                                       {"hidden_size", 64},
                                       {"num_heads", 2},
                                       {"num_hidden_layers", 5},
                                       {"intermediate_size", 96},
                                       {"max_position_embeddings", 77},
                                       {"norm_eps", 1e-5},
                                       {"tie_word_embeddings", true},
                                       {"fuse_norm", false},
                                       {"hidden_act", "silu"}});
    CHECK(config.vocab_size == 100);
    CHECK(config.hidden_size == 64);
    CHECK(config.layers == 5);
    CHECK(config.intermediate_size == 96);
    CHECK(config.max_position_embeddings == 77);
    CHECK(config.norm_eps == 1e-5);
    CHECK(config.tie_word_embeddings);
    CHECK(!config.linear.fused_norm);
  }
}

TEST_CASE("the intermediate size follows the hidden ratio where it is null") {
  json const base{{"hidden_size", 192}, {"num_heads", 3}, {"intermediate_size", nullptr}};
  auto const with_ratio = [&](json const& ratio) {
    auto fields = base;
    fields["hidden_ratio"] = ratio;
    return parse("retnet", fields).intermediate_size;
  };
  CHECK(with_ratio(2) == 256);
  CHECK(with_ratio(4) == 512);
  CHECK(with_ratio(nullptr) == 512);  // as 4
  CHECK(with_ratio(4.01) == 768);
  CHECK_THAT(parse_refusal("retnet", {{"hidden_ratio", 0}}), Catch::Contains("'hidden_ratio': found 0; expected"));
  CHECK_THAT(parse_refusal("retnet", {{"hidden_ratio", 1e300}}), Catch::Contains("'hidden_ratio'"));
}

TEST_CASE("retnet and gla split the expanded hidden size over grouped heads") {
  for (std::string const family : {"retnet", "gla"}) {
    auto const linear = parse(family, {{"hidden_size", 64},
                                       {"num_heads", 4},
                                       {"num_kv_heads", 2},
                                       {"expand_k", 0.5},
                                       {"expand_v", 2},
                                       {"use_output_gate", false},
                                       {"elementwise_affine", false}})
                            .linear;
    CHECK(linear.state_heads == 4);
    CHECK(linear.query_heads == 4);
    CHECK(linear.key_heads == 2);
    CHECK(linear.value_heads == 2);
    CHECK(linear.key_dim == 8);
    CHECK(linear.value_dim == 32);
    CHECK(!linear.output_gate);
    CHECK(!linear.norm_weight);
  }
  CHECK(parse("gla", {{"clamp_min", -0.5}}).linear.clamp_min == -0.5);
  CHECK(!parse("gla", {{"clamp_min", nullptr}}).linear.clamp_min);
}

TEST_CASE("gated_deltanet groups value heads over key heads") {
  auto const linear = parse("gated_deltanet", {{"num_heads", 2},
                                               {"num_v_heads", 6},
                                               {"head_dim", 16},
                                               {"expand_v", 1.5},
                                               {"use_gate", false},
                                               {"conv_size", 3},
                                               {"allow_neg_eigval", true}})
                          .linear;
  CHECK(linear.state_heads == 6);
  CHECK(linear.query_heads == 2);
  CHECK(linear.key_heads == 2);
  CHECK(linear.value_heads == 6);
  CHECK(linear.key_dim == 16);
  CHECK(linear.value_dim == 24);
  CHECK(!linear.output_gate);
  CHECK(linear.conv_size == 3);
  CHECK(linear.negative_eigenvalues);
  CHECK(parse("gated_deltanet", {{"use_short_conv", false}}).linear.conv_size == 0);
}

TEST_CASE("attention layers are read, with their own defaults") {
  auto const defaults = parse("retnet", attn()).attention;
  CHECK(defaults.layers == std::vector<std::int64_t>{1});
  CHECK(defaults.heads == 8);
  CHECK(defaults.kv_heads == 8);
  CHECK(defaults.head_dim == 256);
  CHECK(!defaults.qkv_bias);
  CHECK(defaults.rope_theta == 10000);

  auto const config = parse("gla", attn({{"layers", {7, 3}},
                                         {"num_heads", 4},
                                         {"num_kv_heads", 2},
                                         {"qkv_bias", true},
                                         {"window_size", nullptr},
                                         {"rope_theta", 500000.0}}));
  CHECK(config.attention.layers == std::vector<std::int64_t>{3, 7});
  CHECK(config.attention.kv_heads == 2);
  CHECK(config.attention.qkv_bias);
  CHECK(config.attention.rope_theta == 500000.0);
  CHECK(hypic_engine::is_attention_layer(config, 3));
  CHECK(!hypic_engine::is_attention_layer(config, 4));
  CHECK(parse("gla", attn({{"num_kv_heads", nullptr}})).attention.kv_heads == 8);
  CHECK(parse("gla", {{"attn", nullptr}}).attention.layers.empty());
}

TEST_CASE("every field of the shipped checkpoints' configs is understood") {
  for (std::string const name : {"retnet", "gla", "gdn"}) {
    auto const file =
        hypic_engine::safetensors::read(std::string(HYPIC_ENGINE_DATA) + "/" + name + "-hybrid-3.8m.safetensors");
    auto const& text = file.metadata().at("config");
    auto const config = hypic_engine::parse_config(text, name);
    auto const fields = json::parse(text);
    CHECK(config.hidden_size == fields.at("hidden_size"));
    CHECK(config.layers == fields.at("num_hidden_layers"));
    CHECK(config.attention.layers == fields.at("attn").at("layers").get<std::vector<std::int64_t>>());
  }
}

TEST_CASE("fields that cannot change a logit do not change the config") {
  for (auto const& family : families) {
    auto const plain = parse(family, json::object());
    for (std::string const name :
         {"attn_mode",     "fuse_swiglu",  "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp",
          "use_cache",     "return_dict",  "initializer_range",  "output_hidden_states",      "output_attentions",
          "architectures", "dtype",        "torch_dtype",        "chunk_size_feed_forward",   "is_encoder_decoder",
          "id2label",      "label2id",     "problem_type",       "transformers_version",      "_name_or_path",
          "pad_token_id",  "bos_token_id", "eos_token_id"}) {
      CAPTURE(family, name);
      CHECK(parse(family, {{name, "anything"}}) == plain);
    }
  }
}

TEST_CASE("unknown model types and fields are refused by name") {
  CHECK_THAT(refusal([] { parse(json::object()); }), Catch::Contains("'model_type': found nothing; expected 'retnet'"));
  CHECK_THAT(parse_refusal("mamba2", {}),
             Catch::Contains(R"(config: config field 'model_type': found string "mamba2")"));
  CHECK_THAT(refusal([] { parse({{"model_type", 3}}); }), Catch::Contains("'model_type': found number 3"));
  CHECK_THAT(parse_refusal("retnet", {{"new_field", 1}}),
             Catch::Contains("'new_field': found number 1; expected only fields of a retnet config"));
  CHECK_THAT(parse_refusal("gla", attn({{"qk_norm", true}})), Catch::Contains("'attn.qk_norm': found boolean true"));
  // A field of another family is unknown too.
  CHECK_THAT(parse_refusal("retnet", {{"clamp_min", -1}}), Catch::Contains("'clamp_min'"));
  CHECK_THAT(parse_refusal("gla", {{"head_dim", 64}}), Catch::Contains("'head_dim'"));
  CHECK_THAT(parse_refusal("gated_deltanet", {{"expand_k", 1}}), Catch::Contains("'expand_k'"));
}

TEST_CASE("a field of the wrong type is refused") {
  for (auto const& family : families) {
    for (std::string const name : {"vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "intermediate_size",
                                   "max_position_embeddings"}) {
      for (json const& value : {json("8"), json(8.0), json(0), json(-1), json(1ULL << 63U), json::array()}) {
        CAPTURE(family, name, value);
        CHECK_THAT(parse_refusal(family, {{name, value}}),
                   Catch::Contains("'" + name + "': found ") && Catch::Contains("expected an integer of 1 to "));
      }
    }
    CHECK_THAT(parse_refusal(family, {{"norm_eps", "1e-6"}}), Catch::Contains("expected a number"));
    CHECK_THAT(parse_refusal(family, {{"norm_eps", 0}}),
               Catch::Contains("'norm_eps': found 0; expected a number above 0"));
    for (double const out_of_fp32 : {1e39, 1e308, 1e-46})
      CHECK_THAT(parse_refusal(family, {{"norm_eps", out_of_fp32}}),
                 Catch::Contains("a number above 0 that fp32 holds"));
    CHECK_THAT(parse_refusal(family, {{"tie_word_embeddings", 1}}), Catch::Contains("expected true or false"));
    CHECK_THAT(parse_refusal(family, {{"fuse_norm", nullptr}}), Catch::Contains("found null; expected true or false"));
    CHECK_THAT(parse_refusal(family, {{"attn", 3}}),
               Catch::Contains("'attn': found number 3; expected null or an object"));
    CHECK_THAT(parse_refusal(family, {{"expand_v", "2"}}), Catch::Contains("'expand_v': found string \"2\""));
  }
}

TEST_CASE("features that the engine lacks are refused") {
  for (auto const& family : families) {
    CHECK_THAT(parse_refusal(family, {{"hidden_act", "gelu"}}), Catch::Contains("'hidden_act': found string \"gelu\""));
    CHECK_THAT(parse_refusal(family, {{"attnres_block_size", 4}}), Catch::Contains("'attnres_block_size'"));
    CHECK_THAT(parse_refusal(family, attn({{"window_size", 64}})),
               Catch::Contains("'attn.window_size': found number 64; expected null, all that this engine supports"));
    CHECK_THAT(parse_refusal(family, attn({{"rope_theta", nullptr}})), Catch::Contains("'attn.rope_theta'"));
  }
  for (std::string const family : {"retnet", "gla"}) {
    CHECK_THAT(parse_refusal(family, {{"feature_map", "relu"}}), Catch::Contains("'feature_map'"));
    CHECK_THAT(parse_refusal(family, {{"use_short_conv", true}}), Catch::Contains("'use_short_conv'"));
  }
  CHECK_THAT(parse_refusal("gla", {{"use_gk", false}}),
             Catch::Contains("'use_gk': found boolean false; expected true"));
  CHECK_THAT(parse_refusal("gla", {{"use_gv", true}}), Catch::Contains("'use_gv': found boolean true; expected false"));
  CHECK_THAT(parse_refusal("gla", {{"clamp_min", 0.5}}), Catch::Contains("'clamp_min': found 0.5"));
}

TEST_CASE("sizes that do not divide are refused") {
  for (std::string const family : {"retnet", "gla"}) {
    CHECK_THAT(parse_refusal(family, {{"num_heads", 7}}),
               Catch::Contains("'num_heads': found 7; expected a divisor of"));
    CHECK_THAT(parse_refusal(family, {{"num_heads", 4}, {"num_kv_heads", 3}}),
               Catch::Contains("'num_kv_heads': found 3"));
    CHECK_THAT(parse_refusal(family, {{"expand_k", 0.3}}), Catch::Contains("'expand_k': found 0.3; expected a factor"));
    CHECK_THAT(parse_refusal(family, {{"expand_v", 1e300}}), Catch::Contains("'expand_v'"));
  }
  CHECK_THAT(parse_refusal("retnet", {{"hidden_size", 24}, {"num_heads", 8}}),
             Catch::Contains("an even key dimension"));
  CHECK_THAT(parse_refusal("gated_deltanet", {{"num_heads", 2}, {"num_v_heads", 3}}),
             Catch::Contains("'num_v_heads': found 3; expected a multiple of num_heads, 2"));
  CHECK_THAT(parse_refusal("gated_deltanet", {{"head_dim", 5}, {"expand_v", 1.5}}), Catch::Contains("'expand_v'"));
}

TEST_CASE("attention entries that make no sense are refused") {
  CHECK_THAT(parse_refusal("gla", {{"attn", {{"num_heads", 8}}}}), Catch::Contains("'attn.layers': found nothing"));
  CHECK_THAT(parse_refusal("gla", {{"attn", {{"layers", {1}}}}}), Catch::Contains("'attn.num_heads': found nothing"));
  CHECK_THAT(parse_refusal("gla", attn({{"layers", 3}})), Catch::Contains("'attn.layers': found number 3"));
  CHECK_THAT(parse_refusal("gla", attn({{"layers", {24}}})), Catch::Contains("expected an integer of 0 to 23"));
  CHECK_THAT(parse_refusal("gla", attn({{"layers", {2, 2}}})), Catch::Contains("found number 2 twice"));
  CHECK_THAT(parse_refusal("gla", attn({{"num_heads", 7}})), Catch::Contains("'attn.num_heads': found 7"));
  CHECK_THAT(parse_refusal("gla", attn({{"num_heads", 2048}})), Catch::Contains("even dimension per head"));
  CHECK_THAT(parse_refusal("gla", attn({{"num_kv_heads", 3}})), Catch::Contains("'attn.num_kv_heads': found 3"));
}

TEST_CASE("text that is no JSON object is refused") {
  for (std::string const text : {"", "[]", "{", "{\"model_type\":\"gla\"} x", "{\"a\":1,\"a\":1}"}) {
    CAPTURE(text);
    CHECK_THAT(refusal([&] { hypic_engine::parse_config(text, "config"); }), Catch::StartsWith("config: "));
  }
}

TEST_CASE("the identity text tells configs apart") {
  auto const plain = parse("gla", attn());
  CHECK(hypic_engine::identity_text(plain) == hypic_engine::identity_text(parse("gla", attn())));
  for (json const& change :
       {json{{"vocab_size", 5}}, json{{"norm_eps", 1e-5}}, json{{"tie_word_embeddings", true}}, json{{"clamp_min", -1}},
        json{{"clamp_min", -2}}, json{{"use_output_gate", false}}, json{{"num_kv_heads", 2}}, json{{"expand_v", 2}},
        attn({{"layers", {2}}}), attn({{"qkv_bias", true}}), attn({{"rope_theta", 1e6}})}) {
    auto fields = attn();
    fields.update(change);
    CHECK(hypic_engine::identity_text(parse("gla", fields)) != hypic_engine::identity_text(plain));
  }
}

}  // namespace
