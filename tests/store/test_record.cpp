// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <variant>
#include <vector>

#include "hypic/store/record.hpp"
#include "store/store_data.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int64_t lengths[] = {0, 1, 2, 3, 4, 5, 9, 33};
constexpr std::int32_t head_lengths[] = {0, 1, 4, 8};

template <class Fn>
void for_each_layout(Fn&& fn) {
  for (auto const head_rows : head_lengths) {
    for (auto const tokens : lengths) {
      CAPTURE(head_rows, tokens);
      auto const model = make_model(head_rows);
      auto const layout = record_layout::make(model, tokens);
      REQUIRE(layout);
      fn(model, *layout);
    }
  }
}

template <class T, class Fn>
void for_each_element(tensor_view<T, 2> const& view, Fn&& fn) {
  for (std::int64_t i = 0; i < view.extent[0]; ++i) {
    for (std::int64_t j = 0; j < view.extent[1]; ++j) fn(view(i, j));
  }
}

template <class T, class Fn>
void for_each_element(tensor_view<T, 3> const& view, Fn&& fn) {
  for (std::int64_t i = 0; i < view.extent[0]; ++i) for_each_element(view[i], fn);
}

/// Calls fn on each element of each window of a record, layer by layer, in the order of the struct members.
template <class Byte, class Fn>
void for_each_window_element(model_layout const& model, record_layout const& layout, Byte* block, Fn&& fn) {
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    auto const layer = static_cast<std::int32_t>(l);
    if (std::holds_alternative<attention_layer>(model.layers[l])) {
      for_each_element(layout.keys(layer, block), fn);
      for_each_element(layout.values(layer, block), fn);
      continue;
    }
    auto const head = layout.head(layer, block);
    for_each_element(head.k, fn);
    for_each_element(head.v, fn);
    for_each_element(head.gates, fn);
    for_each_element(head.beta, fn);
    auto const body = layout.body(layer, block);
    for_each_element(body.operators, fn);
    for_each_element(body.end_states, fn);
    for_each_element(layout.tail(layer, block), fn);
  }
}

template <std::size_t Rank>
using extents = std::array<std::int64_t, Rank>;

std::vector<float> floats_of(std::span<std::byte const> bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

}  // namespace

TEST_CASE("parts are ordered, aligned and disjoint, and cover the block but for less than a line each",
          "[store][record]") {
  for_each_layout([](model_layout const&, record_layout const& layout) {
    CHECK(layout.bytes() % 64 == 0);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < layout.parts().size(); ++i) {
      auto const& part = layout.parts()[i];
      CHECK(part.offset % 64 == 0);
      CHECK(part.offset - end >= 0);
      CHECK(part.offset - end < 64);
      CHECK(part.bytes > 0);
      CHECK(layout.find(part.id) == static_cast<std::int64_t>(i));
      if (i > 0) CHECK(layout.parts()[i - 1].id < part.id);
      end = part.offset + part.bytes;
    }
    CHECK(layout.bytes() - end >= 0);
    CHECK(layout.bytes() - end < 64);
  });
}

TEST_CASE("the windows on a record cover every byte of every part once, and nothing else", "[store][record]") {
  for_each_layout([](model_layout const& model, record_layout const& layout) {
    std::vector<float> block(static_cast<std::size_t>(layout.bytes()) / sizeof(float), 0.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(block.data());
    for_each_window_element(model, layout, bytes, [](float& element) { element += 1.0f; });

    std::vector<float> expected(block.size(), 0.0f);
    for (auto const& part : layout.parts()) std::fill_n(expected.begin() + part.offset / 4, part.bytes / 4, 1.0f);
    CHECK(block == expected);
  });
}

TEST_CASE("constant windows read what mutable ones wrote", "[store][record]") {
  for_each_layout([](model_layout const& model, record_layout const& layout) {
    std::vector<float> block(static_cast<std::size_t>(layout.bytes()) / sizeof(float), -1.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(block.data());
    float next = 0.0f;
    for_each_window_element(model, layout, bytes, [&](float& element) { element = next++; });
    std::vector<float> read;
    for_each_window_element(model, layout, static_cast<std::byte const*>(bytes),
                            [&](float const& element) { read.push_back(element); });
    CHECK(static_cast<float>(read.size()) == next);
    CHECK(std::ranges::is_sorted(read));
    CHECK((read.empty() || read.front() == 0.0f));
  });
}

TEST_CASE("windows have the shapes of their layers", "[store][record]") {
  auto const model = make_model(4);
  auto const layout = *record_layout::make(model, 9);
  std::vector<float> block(static_cast<std::size_t>(layout.bytes()) / sizeof(float));
  auto* const bytes = reinterpret_cast<std::byte*>(block.data());
  CHECK(layout.tokens() == 9);
  CHECK(layout.head_rows() == 4);
  CHECK(layout.has_body());

  auto const gla_head = layout.head(1, bytes);
  CHECK(gla_head.k.extent == extents<3>{4, 1, 5});
  CHECK(gla_head.v.extent == extents<3>{4, 3, 2});
  CHECK(gla_head.gates.extent == extents<3>{4, 3, 5});
  CHECK(gla_head.beta.empty());
  CHECK(layout.body(1, bytes).operators.extent == extents<2>{3, 5});
  CHECK(layout.body(1, bytes).end_states.extent == extents<3>{3, 5, 2});
  CHECK(layout.tail(1, bytes).extent == extents<3>{0, 1, 0});

  auto const delta_head = layout.head(3, bytes);
  CHECK(delta_head.k.extent == extents<3>{4, 2, 3});
  CHECK(delta_head.v.extent == extents<3>{4, 4, 5});
  CHECK(delta_head.gates.extent == extents<3>{4, 4, 1});
  CHECK(delta_head.beta.extent == extents<2>{4, 4});
  CHECK(layout.body(3, bytes).operators.extent == extents<2>{4, 9});
  CHECK(layout.tail(3, bytes).extent == extents<3>{3, 1, 6});

  CHECK(layout.body(0, bytes).operators.extent == extents<2>{2, 1});
  CHECK(layout.head(5, bytes).gates.extent == extents<3>{4, 2, 4});
  CHECK(layout.body(5, bytes).operators.extent == extents<2>{2, 16});
  CHECK(layout.keys(4, bytes).extent == extents<3>{9, 1, 3});
  CHECK(layout.values(4, bytes).extent == extents<3>{9, 1, 7});

  // Last strides are 1, and a head's rows, operators and states are packed.
  CHECK(delta_head.v.stride[0] == 5);
  CHECK(delta_head.v.stride[2] == 1);
  CHECK(layout.body(3, bytes).end_states.stride[1] == 5);
  CHECK(layout.keys(2, bytes).stride[0] == 4);
}

TEST_CASE("a part holds the bytes of its head alone", "[store][record]") {
  auto const model = make_model(4);
  auto const layout = *record_layout::make(model, 9);
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes()));
  auto const fill = [](tensor_view<float, 3> view, std::int64_t head) {
    for (std::int64_t row = 0; row < view.extent[0]; ++row) {
      for (std::int64_t d = 0; d < view.extent[2]; ++d) view(row, head, d) = 1.0f;
    }
  };
  auto const ones_in = [&](part_id const& id) {
    auto const floats = floats_of(bytes_of(layout.parts()[static_cast<std::size_t>(layout.find(id))], block));
    return std::ranges::count(floats, 1.0f);
  };
  fill(layout.head(3, block.data()).k, 1);
  fill(layout.head(3, block.data()).v, 2);
  fill(layout.values(2, block.data()), 1);
  CHECK(ones_in({3, part_kind::head_keys, 0}) == 0);
  CHECK(ones_in({3, part_kind::head_keys, 1}) == 4 * 3);
  CHECK(ones_in({3, part_kind::linear_state, 1}) == 0);
  CHECK(ones_in({3, part_kind::linear_state, 2}) == 4 * 5);
  CHECK(ones_in({2, part_kind::keys_values, 0}) == 0);
  CHECK(ones_in({2, part_kind::keys_values, 1}) == 9 * 4);
}

TEST_CASE("within a part the arrays lie in the order of layout revision 1", "[store][record]") {
  // Records outlive processes: another order of the bytes needs another revision, which is part of every key.
  static_assert(record_layout_revision == 1);
  auto const layout = *record_layout::make(make_model(4), 9);
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes()));
  auto const at = [&](part_id const& id, float const* element) {
    auto const& part = layout.parts()[static_cast<std::size_t>(layout.find(id))];
    return (reinterpret_cast<std::byte const*>(element) - block.data() - part.offset) / 4;
  };
  part_id const state{3, part_kind::linear_state, 2};  // Dk 3, Dv 5, dense T
  auto const head = layout.head(3, block.data());
  auto const body = layout.body(3, block.data());
  CHECK(at(state, &body.end_states(2, 0, 0)) == 0);
  CHECK(at(state, &body.end_states(2, 1, 1)) == 6);
  CHECK(at(state, &head.v(0, 2, 0)) == 15);
  CHECK(at(state, &head.v(1, 2, 0)) == 20);
  CHECK(at(state, &body.operators(2, 0)) == 35);
  CHECK(at(state, &head.gates(0, 2, 0)) == 44);
  CHECK(at(state, &head.beta(0, 2)) == 48);
  CHECK(at(state, &head.beta(3, 2)) == 51);
  CHECK(at({3, part_kind::head_keys, 1}, &head.k(1, 1, 0)) == 3);
  CHECK(at({3, part_kind::tail, 0}, &layout.tail(3, block.data())(1, 0, 0)) == 6);
  CHECK(at({2, part_kind::keys_values, 1}, &layout.keys(2, block.data())(1, 1, 0)) == 4);
  CHECK(at({2, part_kind::keys_values, 1}, &layout.values(2, block.data())(0, 1, 0)) == 36);
}

TEST_CASE("a tail in groups is a part each, whose window covers their channels in order", "[store][record]") {
  auto linear = make_linear(family_id::gated_deltanet, {2, 2, 64, 64}, 3);
  linear.tail_channels = 384;
  linear.tail_groups = 4;
  auto const model = model_of(8, linear);
  auto const layout = *record_layout::make(model, 100);
  CHECK(layout.parts().size() == 2 + 2 + 4);
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes()));
  auto const tail = layout.tail(0, block.data());
  CHECK(tail.extent == extents<3>{3, 4, 96});
  for (std::int32_t group = 0; group < 4; ++group) {
    auto const& part = layout.parts()[static_cast<std::size_t>(layout.find({0, part_kind::tail, group}))];
    CHECK(part.bytes == 4 * 3 * 96);
    CHECK(reinterpret_cast<std::byte*>(&tail(0, group, 0)) == block.data() + part.offset);
    CHECK(reinterpret_cast<std::byte*>(&tail(2, group, 95)) == block.data() + part.offset + part.bytes - 4);
  }
}

TEST_CASE("a record has the size that its contents need", "[store][record][case-31]") {
  // One gated_deltanet layer, two heads of 64 x 64, W = 8, convolution of 4 over 384 channels; one attention layer.
  auto linear = make_linear(family_id::gated_deltanet, {2, 2, 64, 64}, 3);
  linear.tail_channels = 384;
  auto const model = model_of(8, linear, make_attention(2, 64, 64));
  auto const layout = *record_layout::make(model, 100);
  std::int64_t const head_keys = 4 * 8 * 64;
  std::int64_t const linear_state = 4 * (8 * 64 + 8 + 8 + 64 * 64 + 64 * 64);
  std::int64_t const tail = 4 * 3 * 384;
  std::int64_t const keys_values = 4 * 100 * (64 + 64);
  CHECK(layout.parts().size() == 7);
  CHECK(layout.bytes() == 2 * head_keys + 2 * linear_state + tail + 2 * keys_values);
}

TEST_CASE("a segment within its head has no body, an empty one no parts", "[store][record]") {
  auto const model = make_model(4);
  auto const within = *record_layout::make(model, 4);
  std::vector<std::byte> block(static_cast<std::size_t>(within.bytes()));
  CHECK(within.head_rows() == 4);
  CHECK_FALSE(within.has_body());
  CHECK(within.body(0, block.data()).empty());

  auto const empty = *record_layout::make(model, 0);
  std::byte* const nothing = nullptr;
  CHECK(empty.bytes() == 0);
  CHECK(empty.parts().empty());
  CHECK_FALSE(empty.has_body());
  CHECK(empty.head(0, nothing).count() == 0);
  CHECK(empty.head(0, nothing).empty());
  CHECK(empty.body(0, nothing).empty());
  CHECK(empty.tail(0, nothing).empty());
  CHECK(empty.keys(2, nothing).empty());
  CHECK(empty.values(2, nothing).size() == 0);
  CHECK(part_digests(empty, {})->empty());
  CHECK(verify_parts(empty, {}, {}, {}) == status::ok);

  // W = 0: all of a segment is body.
  auto const headless = *record_layout::make(make_model(0), 4);
  CHECK(headless.has_body());
  CHECK(headless.find({0, part_kind::head_keys, 0}) == -1);
  CHECK(headless.find({0, part_kind::linear_state, 0}) >= 0);
}

TEST_CASE("find knows no part that is not there", "[store][record]") {
  auto const layout = *record_layout::make(make_model(), 9);
  for (part_id const id : {part_id{-1, part_kind::head_keys, 0}, part_id{6, part_kind::head_keys, 0},
                           part_id{0, part_kind::keys_values, 0}, part_id{0, part_kind::head_keys, 2},
                           part_id{0, part_kind::head_keys, -1}, part_id{1, part_kind::tail, 0}}) {
    CHECK(layout.find(id) == -1);
  }
}

TEST_CASE("digests find a flipped bit in any byte of any part, and ignore what lies between",
          "[store][record][case-27]") {
  auto const layout = *record_layout::make(make_model(2), 3);
  auto const block = make_block(layout, 7);
  auto const digests = *part_digests(layout, block);
  REQUIRE(digests.size() == layout.parts().size());

  std::int64_t part = -1;  // the last one that starts at or before the byte
  for (std::int64_t at = 0; at < layout.bytes(); ++at) {
    if (part + 1 < std::ssize(layout.parts()) && layout.parts()[static_cast<std::size_t>(part + 1)].offset == at)
      ++part;
    auto const& around = layout.parts()[static_cast<std::size_t>(part)];
    auto tampered = block;
    tampered[static_cast<std::size_t>(at)] ^= std::byte{static_cast<unsigned char>(1 << (at % 8))};
    auto const outcome = verify_parts(layout, tampered, digests, {});
    if (at < around.offset + around.bytes) {
      REQUIRE(outcome == status::corrupt);
      REQUIRE(outcome.found() == part);
    } else {
      REQUIRE(outcome == status::ok);
      REQUIRE(*part_digests(layout, tampered) == digests);
    }
  }
}

TEST_CASE("a subset of the parts is verified by itself", "[store][record][case-27]") {
  auto const layout = *record_layout::make(make_model(), 9);
  auto const block = make_block(layout, 8);
  auto digests = *part_digests(layout, block);
  std::swap(digests[2], digests[5]);
  std::vector<std::int64_t> const around{0, 1, 3, 4, 6};
  std::vector<std::int64_t> const backwards{4, 5, 2, 0};
  CHECK(verify_parts(layout, block, digests, around) == status::ok);
  CHECK(verify_parts(layout, block, digests, backwards) == status::corrupt);
  CHECK(verify_parts(layout, block, digests, backwards).found() == 5);
  CHECK(verify_parts(layout, block, digests, {}).found() == 2);

  std::vector<std::int64_t> const below{0, -1};
  std::vector<std::int64_t> const above{std::ssize(layout.parts())};
  CHECK(verify_parts(layout, block, digests, below) == status::out_of_range);
  CHECK(verify_parts(layout, block, digests, above) == status::out_of_range);
}

TEST_CASE("a block or a list of digests of another size than the layout's is refused", "[store][record][case-25]") {
  auto const layout = *record_layout::make(make_model(), 54);
  auto const block = make_block(layout, 9);
  auto const digests = *part_digests(layout, block);
  auto const packed = make_block(*record_layout::make(make_model(), 374), 9);
  auto const whole = std::span{block};

  CHECK(part_digests(layout, packed).error() == status::invalid_shape);
  CHECK(part_digests(layout, whole.first(block.size() - 1)).error() == status::invalid_shape);
  CHECK(verify_parts(layout, packed, digests, {}) == status::invalid_shape);
  CHECK(verify_parts(layout, {}, digests, {}) == status::invalid_shape);
  CHECK(verify_parts(layout, block, std::span{digests}.first(1), {}) == status::invalid_shape);
  CHECK(verify_parts(layout, block, {}, {}) == status::invalid_shape);
}

TEST_CASE("layouts are equal for equal models and lengths alone", "[store][record]") {
  auto const layout = *record_layout::make(make_model(), 9);
  CHECK(layout == *record_layout::make(make_model(), 9));
  CHECK(layout != *record_layout::make(make_model(), 10));
  CHECK(layout != *record_layout::make(make_model(3), 9));
  auto scaled = make_model();
  std::get<linear_layer>(scaled.layers[0]).options.l2_normalize = true;
  CHECK(layout != *record_layout::make(scaled, 9));
}

TEST_CASE("impossible sizes are refused before any memory is asked for", "[store][record]") {
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  constexpr auto longest = std::numeric_limits<std::int64_t>::max();
  CHECK(record_layout::make(make_model(), -1).error() == status::invalid_shape);
  CHECK(record_layout::make(make_model(), longest).error() == status::invalid_shape);
  CHECK(record_layout::make(make_model(-1), 9).error() == status::invalid_shape);

  auto const refused = [](auto const& layer, std::int32_t head_rows, std::int64_t tokens) {
    return record_layout::make(model_of(head_rows, layer), tokens).error() == status::invalid_shape;
  };
  for (auto const family : {family_id::retnet, family_id::gla, family_id::gated_deltanet, family_id::kda}) {
    CHECK(refused(make_linear(family, {1, 1, most, most}), 8, 9));
    CHECK_FALSE(refused(make_linear(family, {1, 1, 4, 4}), most, longest));
    CHECK(refused(make_linear(family, {most, most, 1, 1}), 8, 9));
    CHECK(refused(make_linear(family, {1, 1, most, 1}), most, longest));
  }
  CHECK(refused(make_attention(1, most, most), 8, longest / 2));
  CHECK(refused(make_attention(1, 1, 1), 8, longest));
  CHECK(refused(make_attention(most / 2, 1, 1), 8, 9));
}
