// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/record.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t part_alignment = 64;
constexpr std::size_t most_parts = std::size_t{1} << 20;  // an absurd head count must not eat the memory for its list
constexpr std::int64_t float_bytes = sizeof(float);

/// Sums and products of sizes that remember whether any left the 64-bit range. Values are at least 0.
class checked_size {
 public:
  constexpr checked_size(std::int64_t value) noexcept : value_(value) {}  // NOLINT: a number is a size

  constexpr std::int64_t value() const noexcept { return value_; }
  constexpr bool overflowed() const noexcept { return overflowed_; }

  friend constexpr checked_size operator*(checked_size left, checked_size right) noexcept {
    checked_size product = 0;
    product.overflowed_ =
        __builtin_mul_overflow(left.value_, right.value_, &product.value_) || left.overflowed_ || right.overflowed_;
    return product;
  }
  friend constexpr checked_size operator+(checked_size left, checked_size right) noexcept {
    checked_size sum = 0;
    sum.overflowed_ =
        __builtin_add_overflow(left.value_, right.value_, &sum.value_) || left.overflowed_ || right.overflowed_;
    return sum;
  }

 private:
  std::int64_t value_ = 0;
  bool overflowed_ = false;
};

constexpr checked_size aligned(checked_size bytes) noexcept {
  return bytes + (part_alignment - bytes.value() % part_alignment) % part_alignment;
}

/// The arrays of a part of kind linear_state. Those whose lengths are multiples of a channel count come first, so that
/// they start at vector boundaries without padding, which no window would write and digests would see.
struct state_arrays {
  checked_size end_state = 0;
  checked_size v = 0;
  checked_size operators = 0;
  checked_size gates = 0;
  checked_size beta = 0;

  state_arrays(linear_layer const& layer, std::int64_t head_rows, bool has_body) noexcept {
    checked_size const key_dim = layer.dims.key_dim;
    checked_size const value_dim = layer.dims.value_dim;
    with_family(layer.family, [&](auto family) {
      using F = decltype(family);
      v = value_dim * head_rows;
      gates = checked_size{gate_elements<F>(layer.dims.key_dim)} * head_rows;
      if (F::delta_rule) beta = head_rows;
      if (has_body) {
        end_state = key_dim * value_dim;
        operators = operator_elements(F::form, layer.dims.key_dim);
      }
    });
  }

  constexpr checked_size size() const noexcept { return end_state + v + operators + gates + beta; }
  constexpr std::int64_t v_at() const noexcept { return end_state.value(); }
  constexpr std::int64_t operators_at() const noexcept { return v_at() + v.value(); }
  constexpr std::int64_t gates_at() const noexcept { return operators_at() + operators.value(); }
  constexpr std::int64_t beta_at() const noexcept { return gates_at() + gates.value(); }
};

std::int64_t tail_length(linear_layer const& layer, std::int64_t tokens) noexcept {
  return std::min<std::int64_t>(layer.tail_rows, tokens);
}

/// Lays parts out one after another.
class part_list {
 public:
  void add(std::size_t layer, part_kind kind, std::int32_t heads, checked_size elements) {
    auto const bytes = elements * float_bytes;
    if (bytes.value() == 0 && !bytes.overflowed()) return;
    for (std::int32_t head = 0; head < heads && fits_; ++head) {
      auto const next = end_ + aligned(bytes);
      fits_ = !next.overflowed() && parts_.size() < most_parts;
      if (!fits_) return;
      parts_.push_back({{static_cast<std::int32_t>(layer), kind, head}, end_.value(), bytes.value()});
      end_ = next;
    }
  }

  bool fits() const noexcept { return fits_; }
  std::int64_t end() const noexcept { return end_.value(); }
  std::vector<record_part> take() noexcept { return std::move(parts_); }

 private:
  std::vector<record_part> parts_;
  checked_size end_ = 0;
  bool fits_ = true;
};

void add_parts(part_list& parts, std::size_t index, linear_layer const& layer, std::int64_t tokens,
               std::int64_t head_rows) {
  auto const& dims = layer.dims;
  parts.add(index, part_kind::head_keys, dims.key_heads, checked_size{head_rows} * dims.key_dim);
  parts.add(index, part_kind::linear_state, dims.value_heads,
            state_arrays{layer, head_rows, tokens > head_rows}.size());
  parts.add(index, part_kind::tail, layer.tail_groups,
            checked_size{tail_length(layer, tokens)} * (layer.tail_channels / layer.tail_groups));
}

void add_parts(part_list& parts, std::size_t index, attention_layer const& layer, std::int64_t tokens, std::int64_t) {
  auto const row = checked_size{layer.key_dim} + layer.value_dim;
  parts.add(index, part_kind::keys_values, layer.kv_heads, row * tokens);
}

/// The parts of one kind in one layer: where the first lies in a block, and how far the next head's is from it. Without
/// such parts there is no data, and windows are views without elements.
template <class Byte>
struct head_parts {
  using element = std::conditional_t<std::is_const_v<Byte>, float const, float>;

  element* data = nullptr;
  std::int64_t stride = 0;

  head_parts(record_layout const& layout, std::int32_t layer, part_kind kind, Byte* block) noexcept {
    auto const index = layout.find({layer, kind, 0});
    if (index < 0) return;
    auto const& part = layout.parts()[static_cast<std::size_t>(index)];
    data = reinterpret_cast<element*>(block + part.offset);
    stride = aligned(part.bytes).value() / float_bytes;
  }

  /// [rows, heads, elements], starting `offset` floats into each head's part.
  tensor_view<element, 3> rows(std::int64_t offset, std::int64_t count, std::int64_t heads,
                               std::int64_t elements) const noexcept {
    return {count > 0 ? data + offset : nullptr, {count, heads, elements}, {elements, stride, 1}};
  }
};

template <class Element, class Byte>
basic_rows_view<Element> head_view(record_layout const& layout, linear_layer const& layer, std::int32_t index,
                                   Byte* block) noexcept {
  auto const& dims = layer.dims;
  auto const rows = layout.head_rows();
  state_arrays const arrays{layer, rows, layout.has_body()};
  head_parts const keys{layout, index, part_kind::head_keys, block};
  head_parts const states{layout, index, part_kind::linear_state, block};

  basic_rows_view<Element> view;
  view.k = keys.rows(0, rows, dims.key_heads, dims.key_dim);
  view.v = states.rows(arrays.v_at(), rows, dims.value_heads, dims.value_dim);
  with_family(layer.family, [&](auto family) {
    using F = decltype(family);
    view.gates = states.rows(arrays.gates_at(), rows, dims.value_heads, gate_elements<F>(dims.key_dim));
    if (F::delta_rule && rows > 0) {
      view.beta = {states.data + arrays.beta_at(), {rows, dims.value_heads}, {1, states.stride}};
    }
  });
  return view;
}

template <class Element, class Byte>
basic_summary_view<Element> body_view(record_layout const& layout, linear_layer const& layer, std::int32_t index,
                                      Byte* block) noexcept {
  if (!layout.has_body()) return {};
  std::int64_t const heads = layer.dims.value_heads;
  std::int64_t const key_dim = layer.dims.key_dim;
  std::int64_t const value_dim = layer.dims.value_dim;
  state_arrays const arrays{layer, layout.head_rows(), true};
  head_parts const states{layout, index, part_kind::linear_state, block};

  basic_summary_view<Element> view;
  view.operators = {states.data + arrays.operators_at(), {heads, arrays.operators.value()}, {states.stride, 1}};
  view.end_states = {states.data, {heads, key_dim, value_dim}, {states.stride, value_dim, 1}};
  return view;
}

template <class Element, class Byte>
tensor_view<Element, 3> tail_view(record_layout const& layout, linear_layer const& layer, std::int32_t index,
                                  Byte* block) noexcept {
  head_parts const parts{layout, index, part_kind::tail, block};
  return parts.rows(0, tail_length(layer, layout.tokens()), layer.tail_groups, layer.tail_channels / layer.tail_groups);
}

template <class Byte>
auto keys_view(record_layout const& layout, attention_layer const& layer, std::int32_t index, Byte* block) noexcept {
  head_parts const parts{layout, index, part_kind::keys_values, block};
  return parts.rows(0, layout.tokens(), layer.kv_heads, layer.key_dim);
}

template <class Byte>
auto values_view(record_layout const& layout, attention_layer const& layer, std::int32_t index, Byte* block) noexcept {
  head_parts const parts{layout, index, part_kind::keys_values, block};
  return parts.rows(layout.tokens() * layer.key_dim, layout.tokens(), layer.kv_heads, layer.value_dim);
}

template <class Layer>
Layer const& layer_of(std::vector<model_layer> const& layers, std::int32_t index) noexcept {
  return std::get<Layer>(layers[static_cast<std::size_t>(index)]);
}

result<digest> part_digest(record_part const& part, std::span<std::byte const> block) noexcept {
  return sha256({block.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes))});
}

status expect_size(char const* argument, std::size_t found, std::int64_t expected) noexcept {
  auto const count = static_cast<std::int64_t>(found);
  if (count == expected) return status::ok;
  return {status::invalid_shape, argument, count, status::relation::equal_to, expected};
}

status verify_part(record_layout const& layout, std::span<std::byte const> block, std::span<digest const> digests,
                   std::int64_t index) noexcept {
  auto const position = static_cast<std::size_t>(index);
  auto const found = part_digest(layout.parts()[position], block);
  if (!found) return found.error();
  if (*found == digests[position]) return status::ok;
  return {status::corrupt, "part", index, status::relation::none, 0};
}

}  // namespace

result<record_layout> record_layout::make(model_layout const& model, std::int64_t tokens) {
  if (auto const s = validate(model); s != status::ok) return s;
  if (tokens < 0) return status{status::invalid_shape, "tokens", tokens, status::relation::at_least, 0};

  return guarded([&]() -> result<record_layout> {
    record_layout made;
    made.tokens_ = tokens;
    made.head_rows_ = std::min<std::int64_t>(model.head_rows, tokens);
    made.layers_ = model.layers;

    part_list parts;
    for (std::size_t index = 0; index < model.layers.size(); ++index) {
      std::visit([&](auto const& layer) { add_parts(parts, index, layer, tokens, made.head_rows_); },
                 model.layers[index]);
    }
    if (!parts.fits()) return status{status::invalid_shape, "record size"};
    made.bytes_ = parts.end();
    made.parts_ = parts.take();
    return made;
  });
}

std::int64_t record_layout::find(part_id const& id) const noexcept {
  auto const place = std::ranges::lower_bound(parts_, id, {}, &record_part::id);
  return place != parts_.end() && place->id == id ? place - parts_.begin() : -1;
}

rows_view record_layout::head(std::int32_t layer, std::byte* block) const noexcept {
  return head_view<float>(*this, layer_of<linear_layer>(layers_, layer), layer, block);
}
const_rows_view record_layout::head(std::int32_t layer, std::byte const* block) const noexcept {
  return head_view<float const>(*this, layer_of<linear_layer>(layers_, layer), layer, block);
}

summary_view record_layout::body(std::int32_t layer, std::byte* block) const noexcept {
  return body_view<float>(*this, layer_of<linear_layer>(layers_, layer), layer, block);
}
const_summary_view record_layout::body(std::int32_t layer, std::byte const* block) const noexcept {
  return body_view<float const>(*this, layer_of<linear_layer>(layers_, layer), layer, block);
}

tensor_view<float, 3> record_layout::tail(std::int32_t layer, std::byte* block) const noexcept {
  return tail_view<float>(*this, layer_of<linear_layer>(layers_, layer), layer, block);
}
tensor_view<float const, 3> record_layout::tail(std::int32_t layer, std::byte const* block) const noexcept {
  return tail_view<float const>(*this, layer_of<linear_layer>(layers_, layer), layer, block);
}

tensor_view<float, 3> record_layout::keys(std::int32_t layer, std::byte* block) const noexcept {
  return keys_view(*this, layer_of<attention_layer>(layers_, layer), layer, block);
}
tensor_view<float const, 3> record_layout::keys(std::int32_t layer, std::byte const* block) const noexcept {
  return keys_view(*this, layer_of<attention_layer>(layers_, layer), layer, block);
}

tensor_view<float, 3> record_layout::values(std::int32_t layer, std::byte* block) const noexcept {
  return values_view(*this, layer_of<attention_layer>(layers_, layer), layer, block);
}
tensor_view<float const, 3> record_layout::values(std::int32_t layer, std::byte const* block) const noexcept {
  return values_view(*this, layer_of<attention_layer>(layers_, layer), layer, block);
}

result<std::vector<digest>> part_digests(record_layout const& layout, std::span<std::byte const> block) {
  if (auto const s = expect_size("block", block.size(), layout.bytes()); s != status::ok) return s;
  return guarded([&]() -> result<std::vector<digest>> {
    std::vector<digest> digests;
    digests.reserve(layout.parts().size());
    for (auto const& part : layout.parts()) {
      auto const one = part_digest(part, block);
      if (!one) return one.error();
      digests.push_back(*one);
    }
    return digests;
  });
}

status verify_parts(record_layout const& layout, std::span<std::byte const> block, std::span<digest const> digests,
                    std::span<std::int64_t const> indices) noexcept {
  auto const count = static_cast<std::int64_t>(layout.parts().size());
  if (auto const s = expect_size("block", block.size(), layout.bytes()); s != status::ok) return s;
  if (auto const s = expect_size("digests", digests.size(), count); s != status::ok) return s;
  for (auto const index : indices) {
    if (index < 0) return {status::out_of_range, "indices", index, status::relation::at_least, 0};
    if (index >= count) return {status::out_of_range, "indices", index, status::relation::at_most, count - 1};
  }

  auto const wanted = indices.empty() ? count : static_cast<std::int64_t>(indices.size());
  for (std::int64_t i = 0; i < wanted; ++i) {
    auto const index = indices.empty() ? i : indices[static_cast<std::size_t>(i)];
    if (auto const s = verify_part(layout, block, digests, index); s != status::ok) return s;
  }
  return status::ok;
}

}  // namespace hypic::inline v0
