// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hypic/core/instruction_set.hpp"
#include "hypic/core/version.hpp"
#include "hypic/segment/seam_attention.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/model_layout.hpp"
#include "hypic/store/sha256.hpp"
#include "store/store_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

// A scalar layer, whose q and k may be rotary, and an attention layer.
model_layout valid_model() {
  auto linear = make_linear(family_id::retnet, {2, 4, 8, 6}, 3);
  linear.rotary = rotary_embedding{.frequencies = {1.0, 0.5}};
  auto attention = make_attention(2, 8, 6);
  attention.rotary = rotary_embedding{.frequencies = {1.0, 0.5}};
  auto model = model_of(8, linear, attention);
  model.max_positions = 100;
  return model;
}

using linear_change = std::function<void(linear_layer&)>;
using attention_change = std::function<void(attention_layer&)>;
using model_change = std::function<void(model_layout&)>;

model_layout with(linear_change const& change) {
  auto model = valid_model();
  change(std::get<linear_layer>(model.layers[0]));
  return model;
}
model_layout with(attention_change const& change) {
  auto model = valid_model();
  change(std::get<attention_layer>(model.layers[1]));
  return model;
}
model_layout with(model_change const& change) {
  auto model = valid_model();
  change(model);
  return model;
}

template <class Change>
status validity(Change change) {
  return validate(with(change));
}

}  // namespace

TEST_CASE("a model whose extents fit is valid", "[store][model_layout]") {
  CHECK(validate(valid_model()) == status::ok);
  CHECK(validate(make_model()) == status::ok);
  CHECK(validate(model_layout{}) == status::ok);
  CHECK(validity(model_change{[](auto& m) { m.head_rows = 0; }}) == status::ok);
  CHECK(validity(linear_change{[](auto& l) { l.rotary->frequencies.resize(4, 0.1); }}) == status::ok);
}

TEST_CASE("an extent below its least is refused", "[store][model_layout]") {
  std::vector<model_layout> const models{
      with(model_change{[](auto& m) { m.head_rows = -1; }}),
      with(model_change{[](auto& m) { m.max_positions = -1; }}),
      with(linear_change{[](auto& l) { l.dims.key_heads = 0; }}),
      with(linear_change{[](auto& l) { l.dims.value_heads = 0; }}),
      with(linear_change{[](auto& l) { l.dims.value_heads = 3; }}),
      with(linear_change{[](auto& l) { l.dims.key_dim = 0; }}),
      with(linear_change{[](auto& l) { l.dims.value_dim = -4; }}),
      with(linear_change{[](auto& l) { l.tail_rows = -1; }}),
      with(linear_change{[](auto& l) { l.tail_channels = 0; }}),
      with(linear_change{[](auto& l) { l.tail_groups = 0; }}),
      with(linear_change{[](auto& l) { l.tail_groups = l.tail_channels + 1; }}),
      with(linear_change{[](auto& l) { l.tail_rows = 0, l.tail_channels = -1; }}),
      with(attention_change{[](auto& a) { a.kv_heads = 0; }}),
      with(attention_change{[](auto& a) { a.query_heads = 0; }}),
      with(attention_change{[](auto& a) { a.query_heads = 3; }}),
      with(attention_change{[](auto& a) { a.key_dim = 0; }}),
      with(attention_change{[](auto& a) { a.value_dim = 0; }}),
  };
  for (std::size_t i = 0; i < models.size(); ++i) {
    CAPTURE(i);
    CHECK(validate(models[i]) == status::invalid_shape);
  }
}

TEST_CASE("a refusal names the member, what it was and what it should be", "[store][model_layout]") {
  auto const outcome = validity(attention_change{[](auto& a) { a.query_heads = 3; }});
  CHECK(std::string{outcome.argument()} == "query_heads");
  CHECK(outcome.found() == 3);
  CHECK(outcome.wanted() == status::relation::multiple_of);
  CHECK(outcome.expected() == 2);
}

TEST_CASE("rotary embeddings under diagonal or dense operators, or wider than their heads, are refused",
          "[store][model_layout]") {
  for (auto const family : {family_id::gla, family_id::gated_deltanet, family_id::kda}) {
    CHECK(validity(linear_change{[=](auto& l) { l.family = family; }}) == status::unsupported);
  }
  CHECK(validity(linear_change{[](auto& l) { l.rotary->frequencies.resize(5, 0.1); }}) == status::unsupported);
  CHECK(validity(attention_change{[](auto& a) { a.rotary->frequencies.resize(5, 0.1); }}) == status::unsupported);
  CHECK(validity(linear_change{[](auto& l) { l.family = static_cast<family_id>(4); }}) == status::unsupported);
}

TEST_CASE("numbers that are not finite are refused: they would equal nothing", "[store][model_layout]") {
  auto const bad_float = std::numeric_limits<float>::quiet_NaN();
  for (auto const bad : {not_a_number, infinity}) {
    CHECK(validity(linear_change{[=](auto& l) { l.rotary->frequencies[1] = bad; }}) == status::invalid_argument);
    CHECK(validity(attention_change{[=](auto& a) { a.rotary->frequencies[0] = bad; }}) == status::invalid_argument);
  }
  CHECK(validity(linear_change{[=](auto& l) { l.options.q_scale = bad_float; }}) == status::invalid_argument);
  CHECK(validity(linear_change{[=](auto& l) { l.options.l2_epsilon = bad_float; }}) == status::invalid_argument);
  CHECK(validity(attention_change{[=](auto& a) { a.scale = bad_float; }}) == status::invalid_argument);
  CHECK(validity(attention_change{[=](auto& a) { a.soft_cap = bad_float; }}) == status::invalid_argument);
}

TEST_CASE("a change of any field gives another fingerprint", "[store][model_layout][case-28]") {
  std::vector<model_layout> const models{
      valid_model(),
      with(model_change{[](auto& m) { m.head_rows = 7; }}),
      with(model_change{[](auto& m) { m.max_positions = 101; }}),
      with(model_change{[](auto& m) { m.layers.pop_back(); }}),
      with(model_change{[](auto& m) { m.layers.push_back(m.layers[0]); }}),
      with(model_change{[](auto& m) {
        m.layers = {m.layers[1], m.layers[0]};
      }}),
      with(linear_change{[](auto& l) { l.family = family_id::gla, l.rotary.reset(); }}),
      with(linear_change{[](auto& l) { l.family = family_id::gated_deltanet, l.rotary.reset(); }}),
      with(linear_change{[](auto& l) { l.dims.key_heads = 1; }}),
      with(linear_change{[](auto& l) { l.dims.value_heads = 2; }}),
      with(linear_change{[](auto& l) { l.dims.key_dim = 6; }}),
      with(linear_change{[](auto& l) { l.dims.value_dim = 8; }}),
      with(linear_change{[](auto& l) { l.options.q_scale = 0.5f; }}),
      with(linear_change{[](auto& l) { l.options.l2_normalize = true; }}),
      with(linear_change{[](auto& l) { l.options.l2_epsilon = 1e-5f; }}),
      with(linear_change{[](auto& l) { l.options.gates = gate_space::linear; }}),
      with(linear_change{[](auto& l) { l.tail_rows = 2; }}),
      with(linear_change{[](auto& l) { l.tail_channels = 7; }}),
      with(linear_change{[](auto& l) { l.tail_groups = l.tail_channels; }}),
      with(linear_change{[](auto& l) { l.rotary.reset(); }}),
      with(linear_change{[](auto& l) { l.rotary->frequencies.clear(); }}),
      with(linear_change{[](auto& l) { l.rotary->frequencies.pop_back(); }}),
      with(linear_change{[](auto& l) { l.rotary->frequencies[1] = 0.25; }}),
      with(linear_change{[](auto& l) { l.rotary->pairing = rotary_pairing::interleaved; }}),
      with(attention_change{[](auto& a) { a.query_heads = 6; }}),
      with(attention_change{[](auto& a) { a.kv_heads = 4; }}),
      with(attention_change{[](auto& a) { a.key_dim = 6; }}),
      with(attention_change{[](auto& a) { a.value_dim = 8; }}),
      with(attention_change{[](auto& a) { a.scale = 0.5f; }}),
      with(attention_change{[](auto& a) { a.soft_cap = 30.0f; }}),
      with(attention_change{[](auto& a) { a.rotary.reset(); }}),
      with(attention_change{[](auto& a) { a.rotary->frequencies[0] = 2.0; }}),
      with(attention_change{[](auto& a) { a.rotary->pairing = rotary_pairing::interleaved; }}),
  };
  std::set<std::string> names;
  for (auto const& model : models) {
    auto const name = model_fingerprint(model, "weights 1");
    REQUIRE(name);
    CHECK(name->size() == 64);
    names.insert(*name);
  }
  names.insert(*model_fingerprint(valid_model(), "weights 2"));
  CHECK(names.size() == models.size() + 1);
}

TEST_CASE("the fingerprint holds the library's version, its instruction set and the sizes at which it splits work",
          "[store][model_layout][case-28]") {
  std::vector<std::byte> written;
  auto const append = [&](std::uint64_t value) {
    for (int i = 0; i < 64; i += 8) written.push_back(static_cast<std::byte>(value >> i & 0xff));
  };
  auto const text = [&](std::string_view field) {
    append(field.size());
    for (auto const c : field) written.push_back(static_cast<std::byte>(c));
  };
  auto const number = [&](std::int64_t value) {
    append(8);
    append(static_cast<std::uint64_t>(value));
  };
  text("hypic model");
  text("host");
  text(host_instruction_set());
  for (auto const part : {header_version.major, header_version.minor, header_version.patch}) number(part);
  for (auto const family : {family_id::retnet, family_id::gla, family_id::gated_deltanet, family_id::kda})
    number(prefill_chunk(family));
  number(attention_block());
  text("weights");
  for (std::int64_t const value : {8, 100, 0}) number(value);  // head_rows, max_positions, layers

  model_layout model;
  model.head_rows = 8;
  model.max_positions = 100;
  CHECK(*model_fingerprint(model, "weights") == to_hex(*sha256({written})));
}

TEST_CASE("equal models have equal fingerprints", "[store][model_layout]") {
  CHECK(*model_fingerprint(valid_model(), "weights") == *model_fingerprint(valid_model(), "weights"));
  CHECK(*model_fingerprint(make_model(), "weights") == *model_fingerprint(make_model(), "weights"));
}

TEST_CASE("without a name from the host, or of an invalid model, there is no fingerprint", "[store][model_layout]") {
  CHECK(model_fingerprint(valid_model(), "").error() == status::invalid_argument);
  auto const broken = with(linear_change{[](auto& l) { l.dims.key_dim = 0; }});
  CHECK(model_fingerprint(broken, "weights").error() == status::invalid_shape);
}
