// SPDX-License-Identifier: Apache-2.0
#include "adapter/c_api/c_api.hpp"

using namespace hypic::c_api;
using hypic::status;

namespace {

status expect_segment(hypic_model const* model, hypic_record const* record, void* block) {
  auto const given = expect_pointers({{"model", model}, {"record", record}, {"block", block}});
  return given == status::ok ? expect_record(*model, *record) : given;
}

/// A segment that is computed alone, in one call.
piece whole(hypic_record const* record, void* block) noexcept {
  return {{.rows = record->layout.tokens()}, record, static_cast<std::byte*>(block)};
}

}  // namespace

extern "C" {

hypic_status hypic_segment_workspace_bytes(hypic_model const* model, int32_t layer, int64_t tokens, int32_t threads,
                                           int64_t* bytes) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"bytes", bytes}}); s != status::ok) return s;
    if (tokens < 0) return {status::invalid_shape, "tokens", tokens, status::relation::at_least, 0};
    auto const layers = static_cast<std::int64_t>(model->layout.layers.size());
    if (layer < 0 || layer >= layers)
      return {status::out_of_range, "layer", layer, status::relation::at_most, layers - 1};
    piece const one{{.rows = tokens}};
    *bytes = prefill_batch{*model, {&one, 1}, tokens}.workspace_bytes(layer, threads);
    return status::ok;
  });
}

hypic_status hypic_segment_linear(hypic_model const* model, int32_t layer, hypic_rows const* rows, hypic_tensor o,
                                  hypic_record const* record, void* block, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_segment(model, record, block); s != status::ok) return s;
    auto const one = whole(record, block);
    std::uint32_t flags = 0;
    auto const outcome =
        prefill_batch{*model, {&one, 1}, one.sequence.rows}.linear(layer, rows, o, hypic_tensor{}, &flags, exec);
    if (outcome != status::ok) return outcome;
    auto const bad = flags & ~static_cast<std::uint32_t>(hypic::expansive_update);
    return bad == 0 ? status{status::ok} : status{status::invalid_argument, "rows: values that may not be cached"};
  });
}

hypic_status hypic_segment_tail(hypic_model const* model, int32_t layer, hypic_tensor raw, hypic_record const* record,
                                void* block) {
  return guarded([&]() -> status {
    if (auto const s = expect_segment(model, record, block); s != status::ok) return s;
    auto const* shape = find_layer<hypic::linear_layer>(*model, layer);
    if (shape == nullptr || shape->tail_rows == 0) return {status::invalid_argument, "layer: it has no convolution"};
    hypic::tensor_view<float, 2> rows;
    if (auto const s = view_of(raw, "raw", rows); s != status::ok) return s;
    if (auto const s =
            hypic::expect_shape("raw", rows, {record->layout.tokens(), shape->tail_channels}, hypic::last_stride::any);
        s != status::ok)
      return s;
    write_tail(*record, layer, static_cast<std::byte*>(block),
               [&](std::int64_t t, std::int64_t c) { return rows(t, c); });
    return status::ok;
  });
}

hypic_status hypic_segment_attention(hypic_model const* model, int32_t layer, hypic_tensor q, hypic_tensor k,
                                     hypic_tensor v, hypic_tensor o, hypic_record const* record, void* block,
                                     hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_segment(model, record, block); s != status::ok) return s;
    auto const one = whole(record, block);
    return prefill_batch{*model, {&one, 1}, one.sequence.rows}.attention(layer, q, k, v, o, exec);
  });
}

}  // extern "C"
