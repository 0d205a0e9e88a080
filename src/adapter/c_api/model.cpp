// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "adapter/c_api/c_api.hpp"

namespace hypic::inline v0::c_api {

status expect_record(hypic_model const& model, hypic_record const& record) {
  auto const made = record_layout::make(model.layout, record.layout.tokens());
  if (!made) return made.error();
  return *made == record.layout ? status{status::ok} : status{status::invalid_shape, "record: made for other layers"};
}

}  // namespace hypic::inline v0::c_api

using namespace hypic::c_api;
using hypic::status;

namespace {

template <int Rank>
hypic_tensor tensor_of(hypic::tensor_view<float const, Rank> const& view) noexcept {
  hypic_tensor made{};
  if (view.empty()) return made;
  made.data = const_cast<float*>(view.data);  // whether it may be written is the caller's to know
  made.rank = Rank;
  std::ranges::copy(view.extent, made.extent);
  std::ranges::copy(view.stride, made.stride);
  return made;
}

/// The layer of that kind that a record's window is of.
template <class Layer>
status find_window(hypic_model const* model, hypic_record const* record, std::int32_t layer, void const* block,
                   Layer const*& found) {
  if (auto const s = expect_pointers({{"model", model}, {"record", record}, {"block", block}}); s != status::ok)
    return s;
  found = find_layer<Layer>(*model, layer);
  if (found == nullptr) return {status::invalid_argument, "layer: it is of another kind"};
  return expect_record(*model, *record);
}

status rotary_of(hypic_layer const& from, std::optional<hypic::rotary_embedding>& to) {
  if (from.frequencies == nullptr) return status::ok;
  if (from.pairs < 1) return {status::invalid_argument, "layers.pairs", from.pairs, status::relation::at_least, 1};
  if (from.pairing != HYPIC_ROTATE_HALF && from.pairing != HYPIC_INTERLEAVED) {
    return {status::invalid_argument, "layers.pairing", from.pairing, status::relation::at_most, HYPIC_INTERLEAVED};
  }
  to = {{from.frequencies, from.frequencies + from.pairs}, static_cast<hypic::rotary_pairing>(from.pairing)};
  return status::ok;
}

status layer_of(hypic_layer const& from, hypic::model_layer& to) {
  std::optional<hypic::rotary_embedding> rotary;
  if (auto const s = rotary_of(from, rotary); s != status::ok) return s;
  if (from.kind == HYPIC_ATTENTION) {
    to = hypic::attention_layer{from.query_heads, from.kv_heads, from.key_dim,     from.value_dim,
                                from.scale,       from.soft_cap, std::move(rotary)};
    return status::ok;
  }
  if (from.kind != HYPIC_LINEAR) {
    return {status::invalid_argument, "layers.kind", from.kind, status::relation::at_most, HYPIC_ATTENTION};
  }
  if (from.family < 0 || from.family > HYPIC_KDA) return {status::unsupported, "layers.family"};
  if (from.gates < 0 || from.gates > HYPIC_LINEAR_GATES) {
    return {status::invalid_argument, "layers.gates", from.gates, status::relation::at_most, HYPIC_LINEAR_GATES};
  }
  hypic::linear_layer layer;
  layer.family = static_cast<hypic::family_id>(from.family);
  layer.dims = {from.key_heads, from.value_heads, from.key_dim, from.value_dim};
  layer.options = {from.q_scale, from.l2_normalize != 0, from.l2_epsilon, static_cast<hypic::gate_space>(from.gates)};
  layer.tail_rows = from.tail_rows;
  layer.tail_channels = from.tail_channels;
  layer.tail_groups = from.tail_groups == 0 ? 1 : from.tail_groups;
  layer.rotary = std::move(rotary);
  to = std::move(layer);
  return status::ok;
}

}  // namespace

extern "C" {

hypic_status hypic_model_create(hypic_model_info const* info, hypic_model** model) {
  return guarded([&]() -> status {
    hypic_model_info given{};
    if (auto const s = hypic::first_failure(expect_pointers({{"model", model}}), read(info, "info", given));
        s != status::ok)
      return s;
    std::vector<hypic_layer> layers;
    if (auto const s = read_all(given.layers, given.layer_count, "info.layers", layers); s != status::ok) return s;
    auto made = std::make_unique<hypic_model>();
    made->layout.head_rows = given.head_rows;
    made->layout.max_positions = given.max_positions;
    made->layout.layers.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (auto const s = layer_of(layers[i], made->layout.layers[i]); s != status::ok) return s;
    if (auto const s = hypic::validate(made->layout); s != status::ok) return s;
    *model = made.release();
    return status::ok;
  });
}
void hypic_model_destroy(hypic_model* model) { delete model; }

hypic_status hypic_model_fingerprint(hypic_model const* model, char const* host, char name[65]) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"host", host}, {"name", name}}); s != status::ok) return s;
    auto const made = hypic::model_fingerprint(model->layout, host);
    if (!made) return made.error();
    std::memcpy(name, made->c_str(), 65);
    return status::ok;
  });
}

hypic_status hypic_make_key(hypic_identity const* identity, hypic_key* key) {
  return guarded([&]() -> status {
    hypic_identity given{};
    if (auto const s = hypic::first_failure(expect_pointers({{"key", key}}), read(identity, "identity", given));
        s != status::ok)
      return s;
    auto const text = [](char const* from) { return from == nullptr ? std::string_view{} : std::string_view(from); };
    auto const made = hypic::make_record_key(
        {.tokens = span_of(given.tokens, given.token_count),
         .content = {static_cast<std::byte const*>(given.content), given.content == nullptr ? 0 : given.content_bytes},
         .model = text(given.model),
         .tenant = text(given.tenant),
         .adapter = text(given.adapter),
         .epoch = given.epoch});
    if (!made) return made.error();
    *key = to_c(made->bytes);
    return status::ok;
  });
}

hypic_status hypic_record_create(hypic_model const* model, int64_t tokens, hypic_record** record) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"record", record}}); s != status::ok) return s;
    auto made = hypic::record_layout::make(model->layout, tokens);
    if (!made) return made.error();
    *record = new hypic_record{std::move(made).value()};
    return status::ok;
  });
}
void hypic_record_destroy(hypic_record* record) { delete record; }
int64_t hypic_record_bytes(hypic_record const* record) { return record->layout.bytes(); }
int64_t hypic_record_part_count(hypic_record const* record) {
  return static_cast<int64_t>(record->layout.parts().size());
}
hypic_part hypic_record_part(hypic_record const* record, int64_t index) {
  return to_c(record->layout.parts()[static_cast<std::size_t>(index)].id);
}

void hypic_record_part_place(hypic_record const* record, int64_t index, int64_t* offset, int64_t* bytes) {
  auto const& part = record->layout.parts()[static_cast<std::size_t>(index)];
  if (offset != nullptr) *offset = part.offset;
  if (bytes != nullptr) *bytes = part.bytes;
}
int64_t hypic_record_find(hypic_record const* record, hypic_part part) {
  if (part.kind < HYPIC_HEAD_KEYS || part.kind > HYPIC_KEYS_VALUES) return -1;
  return record->layout.find({part.layer, static_cast<hypic::part_kind>(part.kind), part.head});
}
int64_t hypic_record_tokens(hypic_record const* record) { return record->layout.tokens(); }
int hypic_record_equal(hypic_record const* left, hypic_record const* right) { return left->layout == right->layout; }

hypic_status hypic_record_copy(hypic_record const* record, hypic_record** copy) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"record", record}, {"copy", copy}}); s != status::ok) return s;
    *copy = new hypic_record{*record};
    return status::ok;
  });
}

hypic_status hypic_record_verify(hypic_record const* record, void const* block, hypic_digest const* digests,
                                 int64_t const* indices, int64_t index_count) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"record", record}, {"block", block}, {"digests", digests}}); s != status::ok)
      return s;
    if (index_count < 0) return {status::invalid_argument, "index_count", index_count, status::relation::at_least, 0};
    if (indices != nullptr && index_count == 0) return status::ok;  // of C++, no indices are all
    auto const& layout = record->layout;
    return hypic::verify_parts(layout, {static_cast<std::byte const*>(block), static_cast<std::size_t>(layout.bytes())},
                               {reinterpret_cast<hypic::digest const*>(digests), layout.parts().size()},
                               span_of(indices, index_count));
  });
}

hypic_status hypic_record_digests(hypic_record const* record, void const* block, hypic_digest* digests) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"record", record}, {"block", block}, {"digests", digests}}); s != status::ok)
      return s;
    auto const made = hypic::part_digests(
        record->layout, {static_cast<std::byte const*>(block), static_cast<std::size_t>(record->layout.bytes())});
    if (!made) return made.error();
    std::ranges::transform(*made, digests, [](hypic::digest const& one) { return to_c(one); });
    return status::ok;
  });
}

hypic_status hypic_record_keys_values(hypic_model const* model, hypic_record const* record, int32_t layer,
                                      void const* block, hypic_tensor* keys, hypic_tensor* values) {
  return guarded([&]() -> status {
    hypic::attention_layer const* shape = nullptr;
    if (auto const s = hypic::first_failure(find_window(model, record, layer, block, shape),
                                            expect_pointers({{"keys", keys}, {"values", values}}));
        s != status::ok)
      return s;
    *keys = tensor_of(record->layout.keys(layer, static_cast<std::byte const*>(block)));
    *values = tensor_of(record->layout.values(layer, static_cast<std::byte const*>(block)));
    return status::ok;
  });
}

hypic_status hypic_record_summary(hypic_model const* model, hypic_record const* record, int32_t layer,
                                  void const* block, hypic_tensor* operators, hypic_tensor* end_states) {
  return guarded([&]() -> status {
    hypic::linear_layer const* shape = nullptr;
    if (auto const s = hypic::first_failure(find_window(model, record, layer, block, shape),
                                            expect_pointers({{"operators", operators}, {"end_states", end_states}}));
        s != status::ok)
      return s;
    hypic::const_summary_view body;
    if (record->layout.has_body()) body = record->layout.body(layer, static_cast<std::byte const*>(block));
    *operators = tensor_of(body.operators);
    *end_states = tensor_of(body.end_states);
    return status::ok;
  });
}

hypic_status hypic_record_tail(hypic_model const* model, hypic_record const* record, int32_t layer, void const* block,
                               hypic_tensor* tail) {
  return guarded([&]() -> status {
    hypic::linear_layer const* shape = nullptr;
    if (auto const s =
            hypic::first_failure(find_window(model, record, layer, block, shape), expect_pointers({{"tail", tail}}));
        s != status::ok)
      return s;
    if (shape->tail_rows == 0) return {status::invalid_argument, "layer: it has no convolution"};
    *tail = tensor_of(record->layout.tail(layer, static_cast<std::byte const*>(block)));
    return status::ok;
  });
}

}  // extern "C"
