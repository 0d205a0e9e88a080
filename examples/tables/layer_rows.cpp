// SPDX-License-Identifier: Apache-2.0
#include "tables/layer_rows.hpp"

namespace hypic_tables {
namespace {

hypic_engine::buffer copy(hypic::tensor_view<float const, 3> rows) {
  if (rows.empty()) return {};
  hypic_engine::buffer copied(rows.extent[0], rows.extent[1] * rows.extent[2]);
  auto const to = copied.view();
  for (std::int64_t row = 0; row < rows.extent[0]; ++row)
    for (std::int64_t head = 0; head < rows.extent[1]; ++head)
      for (std::int64_t d = 0; d < rows.extent[2]; ++d) to(row, head * rows.extent[2] + d) = rows(row, head, d);
  return copied;
}

hypic::tensor_view<float const, 3> with_columns(hypic::tensor_view<float const, 2> rows) {
  return {rows.data, {rows.extent[0], rows.extent[1], 1}, {rows.stride[0], rows.stride[1], 1}};
}

}  // namespace

hypic::query_rows_view layer_rows::view(hypic::linear_layer const& shape) const {
  auto const& dims = shape.dims;
  hypic::query_rows_view seen;
  seen.q = hypic_engine::split_heads(q.view(), dims.key_heads);
  seen.rows.k = hypic_engine::split_heads(k.view(), dims.key_heads);
  seen.rows.v = hypic_engine::split_heads(v.view(), dims.value_heads);
  seen.rows.gates = hypic_engine::split_heads(gates.view(), dims.value_heads);
  if (beta.width() > 0) seen.rows.beta = beta.view();
  return seen;
}

void recording_mixer::tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw,
                            hypic::tensor_view<float, 3> tails) {
  inner_.tails(layer, raw, tails);
}

void recording_mixer::linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) {
  inner_.linear(layer, in, o);
  auto& kept = rows_[static_cast<std::size_t>(layer)];
  kept = {copy(in.q), copy(in.rows.k), copy(in.rows.v), copy(in.rows.gates), {}, {}, {}};
  if (!in.rows.beta.empty()) kept.beta = copy(with_columns(in.rows.beta));
}

void recording_mixer::attention(std::int32_t layer, hypic::tensor_view<float const, 3> q,
                                hypic::tensor_view<float const, 3> k, hypic::tensor_view<float const, 3> v,
                                hypic::tensor_view<float, 3> o) {
  inner_.attention(layer, q, k, v, o);
  rows_[static_cast<std::size_t>(layer)] = {copy(q), copy(k), copy(v), {}, {}, copy(o), {}};
}

std::vector<layer_rows> recorded(hypic_engine::token_mixer& inner, hypic::model_layout const& layout,
                                 mixer_front const& front,
                                 std::function<void(hypic_engine::token_mixer& mixer)> const& run) {
  auto const changed = front ? front(inner) : nullptr;
  recording_mixer mixer(changed ? *changed : inner, layout);
  run(mixer);
  return mixer.take();
}

void recording_mixer::after_layer(std::int32_t layer, hypic::tensor_view<float const, 2> hidden) {
  inner_.after_layer(layer, hidden);
  rows_[static_cast<std::size_t>(layer)].hidden = copy(with_columns(hidden));
}

}  // namespace hypic_tables
