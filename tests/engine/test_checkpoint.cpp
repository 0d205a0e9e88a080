// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/checkpoint.hpp"
#include "engine/engine_test.hpp"
#include "engine/files.hpp"
#include "engine/synthetic.hpp"

namespace {

using engine_test::refusal;
using engine_test::temporary_folder;
using hypic_engine::checkpoint;
using hypic_engine::load_checkpoint;
using hypic_engine::model_family;
namespace fs = std::filesystem;

using values_by_name = std::map<std::string, std::vector<float>>;

values_by_name values_of(checkpoint const& model) {
  values_by_name out;
  hypic_engine::for_each_tensor(model, [&](std::string_view name, std::span<float const> values) {
    CHECK(out.emplace(name, std::vector<float>(values.begin(), values.end())).second);
  });
  return out;
}

values_by_name values_of(synthetic::model const& m) {
  values_by_name out;
  for (auto const& w : m.tensors) out.emplace(w.name, w.values);
  return out;
}

checkpoint written_and_loaded(synthetic::model const& m) {
  temporary_folder const folder;
  synthetic::write_file(m, folder / "model.safetensors");
  return load_checkpoint(folder / "model.safetensors");
}

std::string load_refusal(synthetic::model const& m) {
  return refusal([&] { written_and_loaded(m); });
}

TEST_CASE("every synthetic variant loads with every value in its place") {
  for (auto const& [name, what] : synthetic::variants()) {
    CAPTURE(name);
    auto const made = synthetic::make(what);
    auto const loaded = written_and_loaded(made);
    CHECK(loaded.config.family == what.family);
    CHECK(values_of(loaded) == values_of(made));
  }
}

TEST_CASE("matrices have the shapes that the config gives them") {
  auto const loaded = written_and_loaded(synthetic::make({.family = model_family::gated_deltanet, .num_v_heads = 4}));
  auto const& linear = std::get<hypic_engine::linear_weights>(loaded.weights.layers.at(0).mixer);
  auto const& c = loaded.config.linear;
  CHECK(linear.q.rows == c.query_heads * c.key_dim);
  CHECK(linear.q.cols == loaded.config.hidden_size);
  CHECK(linear.v.rows == c.value_heads * c.value_dim);
  CHECK(linear.v_conv.rows == linear.v.rows);
  CHECK(linear.v_conv.cols == c.conv_size);
  CHECK(static_cast<std::int64_t>(linear.v_conv.data.size()) == linear.v.rows * c.conv_size);
  CHECK(std::holds_alternative<hypic_engine::attention_weights>(loaded.weights.layers.at(1).mixer));
}

TEST_CASE("the shipped checkpoints load") {
  for (std::string const name : {"retnet", "gla", "gdn"}) {
    auto const model = load_checkpoint(std::string(HYPIC_ENGINE_DATA) + "/" + name + "-hybrid-3.8m.safetensors");
    CHECK(static_cast<std::int64_t>(model.weights.layers.size()) == model.config.layers);
    CHECK(model.output_matrix().rows == model.config.vocab_size);
  }
}

TEST_CASE("tied models make logits from their embeddings") {
  auto const tied = written_and_loaded(synthetic::make({.tie_word_embeddings = true}));
  CHECK(&tied.output_matrix() == &tied.weights.embeddings);
  auto const untied = written_and_loaded(synthetic::make({}));
  CHECK(&untied.output_matrix() == &untied.weights.lm_head);
}

TEST_CASE("one file, shards, and a folder of either are the same model") {
  temporary_folder const folder;
  fs::create_directory(folder / "one");
  fs::create_directory(folder / "sharded");
  for (auto const family : {model_family::retnet, model_family::gla, model_family::gated_deltanet}) {
    auto const made = synthetic::make({.family = family});
    synthetic::write_file(made, folder / "one/model.safetensors");
    auto const index = synthetic::write_sharded(made, folder / "sharded", 2);
    auto const expected = values_of(made);
    auto const config = load_checkpoint(folder / "one/model.safetensors").config;
    for (auto const& path : {folder / "one/model.safetensors", folder / "one", index, folder / "sharded"}) {
      CAPTURE(path);
      auto const loaded = load_checkpoint(path);
      CHECK(loaded.config == config);
      CHECK(values_of(loaded) == expected);
    }
  }
}

TEST_CASE("the visiting order does not depend on how a model is stored") {
  auto const names = [](checkpoint const& model) {
    std::vector<std::string> out;
    hypic_engine::for_each_tensor(model,
                                  [&](std::string_view name, std::span<float const>) { out.emplace_back(name); });
    return out;
  };
  auto made = synthetic::make({.family = model_family::gla});
  auto const expected = names(written_and_loaded(made));
  std::reverse(made.tensors.begin(), made.tensors.end());
  CHECK(names(written_and_loaded(made)) == expected);
}

TEST_CASE("metadata hold the config; config.json stands in where they do not") {
  auto made = synthetic::make({});
  temporary_folder const folder;
  synthetic::write_file(made, folder / "model.safetensors");
  synthetic::write_text(folder / "config.json", "not read");
  CHECK(load_checkpoint(folder.path()).config.family == model_family::retnet);

  fs::remove(folder / "model.safetensors");
  synthetic::write_sharded(made, folder.path(), 1);
  CHECK(load_checkpoint(folder.path()).config.family == model_family::retnet);
  synthetic::write_text(folder / "config.json", "{");
  CHECK_THAT(refusal([&] { load_checkpoint(folder.path()); }), Catch::Contains("config.json': found no valid JSON"));
  fs::remove(folder / "config.json");
  CHECK_THAT(refusal([&] { load_checkpoint(folder.path()); }),
             Catch::Contains("found no config; expected a metadata entry"));
}

TEST_CASE("a missing, misshapen or unexpected tensor is refused by name") {
  auto const good = synthetic::make({.family = model_family::gated_deltanet});
  for (std::size_t i = 0; i < good.tensors.size(); ++i) {
    auto const& name = good.tensors[i].name;
    CAPTURE(name);
    auto missing = good;
    missing.tensors.erase(missing.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK_THAT(load_refusal(missing),
               Catch::Contains("tensor '" + name + "': found nothing; expected a tensor of shape ["));

    auto misshapen = good;
    misshapen.tensors[i].shape.push_back(1);
    CHECK_THAT(load_refusal(misshapen), Catch::Contains("tensor '" + name + "': found shape ["));
  }
  auto extra = good;
  extra.tensors.push_back(good.tensors.front());
  extra.tensors.back().name = "model.layers.3.attn_norm.weight";
  CHECK_THAT(load_refusal(extra),
             Catch::Contains("'model.layers.3.attn_norm.weight': found a tensor that this config"));
}

TEST_CASE("weights that are not finite are refused by name and place") {
  for (auto const stored_as : {hypic_engine::element_type::f32, hypic_engine::element_type::bf16}) {
    for (float const bad : {std::nanf(""), INFINITY, -INFINITY}) {
      auto made = synthetic::make({.stored_as = stored_as});
      made.at("model.layers.2.mlp.up_proj.weight").values.at(5) = bad;
      CHECK_THAT(load_refusal(made), Catch::Contains("'model.layers.2.mlp.up_proj.weight': found ") &&
                                         Catch::Contains(" at element 5; expected finite weights"));
    }
  }
}

TEST_CASE("weights of a type that is no float are refused") {
  auto made = synthetic::make({});
  made.tensors.front().stored_as = hypic_engine::element_type::i32;
  CHECK_THAT(load_refusal(made), Catch::Contains("elements; expected F32, F16 or BF16"));
}

TEST_CASE("a config that does not fit the weights is refused") {
  auto made = synthetic::make({});
  made.config["num_hidden_layers"] = 4;
  CHECK_THAT(load_refusal(made), Catch::Contains("'model.layers.3.attn_norm.weight': found nothing"));
  made.config["model_type"] = "gla";
  CHECK_THAT(load_refusal(made), Catch::Contains("gk_proj.0.weight': found nothing"));
  made.config["model_type"] = "rwkv7";
  CHECK_THAT(load_refusal(made), Catch::Contains("'model_type': found string \"rwkv7\""));
}

TEST_CASE("paths that lead to no checkpoint are refused") {
  temporary_folder const folder;
  auto const path_refusal = [&](fs::path const& path) { return refusal([&] { load_checkpoint(path); }); };
  CHECK_THAT(path_refusal(folder / "absent"), Catch::Contains("absent': found nothing there; expected a file"));
  CHECK_THAT(path_refusal(folder.path()), Catch::Contains("0 files *.safetensors; expected one index"));
  fs::create_directory(folder / "model.safetensors");
  CHECK_THAT(path_refusal(folder.path()), Catch::Contains("found nothing there") || Catch::Contains("found a folder"));
  synthetic::write_text(folder / "empty", "");
  CHECK_THAT(path_refusal(folder / "empty"), Catch::Contains("found 0 bytes"));
  CHECK_THAT(path_refusal(HYPIC_ENGINE_DATA), Catch::Contains("expected one index, or else one safetensors file"));
}

TEST_CASE("an index and its shards must agree") {
  auto const made = synthetic::make({});
  temporary_folder const folder;
  auto const index = synthetic::write_sharded(made, folder.path(), 2);
  auto const index_refusal = [&] { return refusal([&] { load_checkpoint(index); }); };

  auto const first = folder / "model-1-of-2.safetensors";
  auto const second = folder / "model-2-of-2.safetensors";
  fs::rename(second, folder / "away");
  CHECK_THAT(index_refusal(), Catch::Contains("model-2-of-2.safetensors': found nothing there"));
  fs::copy_file(first, second);
  CHECK_THAT(index_refusal(), Catch::Contains("in shard 'model-1-of-2.safetensors' as the index says"));
  fs::rename(folder / "away", second);

  nlohmann::json const map{{"some.tensor", "model-1-of-2.safetensors"}};
  synthetic::write_text(index, nlohmann::json{{"weight_map", map}}.dump());
  CHECK_THAT(index_refusal(), Catch::Contains("expected it to be in the index"));
  auto const empty = hypic_engine::serialize_safetensors({}, {});
  hypic_engine::write_file(first, empty);
  CHECK_THAT(index_refusal(), Catch::Contains("found no tensor 'some.tensor'; expected it here as the index says"));

  for (std::string const text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"t":1}})",
                                 R"({"weight_map":{"t":""}})", R"({"weight_map":{"t":"../f"}})"}) {
    CAPTURE(text);
    synthetic::write_text(index, text);
    CHECK_THAT(index_refusal(), Catch::Contains("model.safetensors.index.json'"));
  }
}

TEST_CASE("shards that carry different configs are refused") {
  temporary_folder const folder;
  auto const index = synthetic::write_sharded(synthetic::make({}), folder.path(), 2);
  for (std::string const number : {"1", "2"}) {
    auto const path = folder / ("model-" + number + "-of-2.safetensors");
    auto const shard = hypic_engine::safetensors::read(path);
    hypic_engine::write_safetensors(path, {{"config", number}}, shard.tensors());
  }
  CHECK_THAT(refusal([&] { load_checkpoint(index); }), Catch::Contains("found another metadata entry 'config'"));
}

/// Changes a file at random: bytes overwritten, inserted or removed, or the end cut off. Half of the changes fall into
/// its first 64 bytes or its header.
class mutator {
 public:
  explicit mutator(std::uint64_t seed) : random_(seed) {}

  std::vector<std::byte> operator()(std::vector<std::byte> bytes, std::size_t header_end) {
    auto const changes = 1 + below(4);
    for (std::size_t i = 0; i < changes; ++i) {
      std::size_t const reaches[] = {64, header_end, header_end, bytes.size()};
      auto const at = below(std::min(reaches[below(4)], bytes.size()));
      change(bytes, at);
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : static_cast<std::size_t>(random_() % limit); }

  std::byte any_byte() {
    // Bytes that mean something to a header, as often as any others.
    constexpr std::string_view telling = "{}[]\",:0123456789-.eE\\ \n";
    return below(2) == 0 ? static_cast<std::byte>(below(256)) : static_cast<std::byte>(telling[below(telling.size())]);
  }

  void change(std::vector<std::byte>& bytes, std::size_t at) {
    auto const place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(8)) {
      case 0: bytes.insert(place, any_byte()); break;
      case 1: bytes.resize(at); break;
      case 2:
        if (!bytes.empty()) bytes.erase(place);
        break;
      default:
        if (!bytes.empty()) *place = any_byte();
    }
  }

  std::mt19937_64 random_;
};

TEST_CASE("each of 1,000 mutations of a valid file loads or ends in one message") {
  temporary_folder const folder;
  auto const path = folder / "model.safetensors";
  int loaded = 0;
  int refused = 0;
  mutator mutate(2026);
  for (int i = 0; i < 1000; ++i) {
    auto const family = static_cast<model_family>(i % 3);
    auto const original = synthetic::file_bytes(synthetic::make({.family = family,
                                                                 .vocab_size = 4,
                                                                 .hidden_size = 4,
                                                                 .num_hidden_layers = 2,
                                                                 .intermediate_size = 4,
                                                                 .head_dim = 2,
                                                                 .attention_heads = 1}));
    std::uint64_t header_length = 0;
    std::memcpy(&header_length, original.data(), sizeof header_length);
    hypic_engine::write_file(path, mutate(original, 8 + static_cast<std::size_t>(header_length)));
    try {
      load_checkpoint(path);
      ++loaded;
    } catch (hypic_engine::engine_error const& error) {
      ++refused;
      if (!engine_test::is_one_line(error.what())) FAIL(i << ": " << error.what());
    }
  }
  CHECK(loaded + refused == 1000);
  CHECK(loaded > 0);
  CHECK(refused > 500);
}

}  // namespace
