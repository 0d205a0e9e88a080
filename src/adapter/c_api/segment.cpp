// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <numeric>

#include "adapter/c_api/c_api.hpp"
#include "core/calls.hpp"
#include "core/scratch.hpp"
#include "hypic/segment/segment_prefill.hpp"

using namespace hypic::c_api;
using hypic::status;

namespace {

status expect_segment(hypic_model const* model, hypic_record const* record, void* block) noexcept {
  return expect_pointers({{"model", model}, {"record", record}, {"block", block}});
}

/// Of a segment that is computed alone.
hypic::attention_plan attention_plan_of(hypic::attention_layer const& shape, std::int64_t tokens) {
  return hypic::plan_attention(shape, tokens, {{0, tokens, tokens}});
}

hypic::result<hypic::prefill_plan> prefill_plan_of(hypic_model const& model, hypic::linear_layer const& shape,
                                                   std::int64_t tokens) {
  return hypic::plan_segment_prefill(shape.family, shape.dims, shape.options, model.layout.head_rows, tokens, 0,
                                     {{.rows = tokens}});
}

status copy_into(hypic::tensor_view<float const, 3> from, hypic::tensor_view<float, 3> to, char const* name) {
  if (auto const s = hypic::expect_shape(name, from, to.extent, hypic::last_stride::any); s != status::ok) return s;
  for (std::int64_t i = 0; i < to.extent[0]; ++i)
    for (std::int64_t h = 0; h < to.extent[1]; ++h)
      for (std::int64_t d = 0; d < to.extent[2]; ++d) to(i, h, d) = from(i, h, d);
  return status::ok;
}

}  // namespace

extern "C" {

hypic_status hypic_segment_workspace_bytes(hypic_model const* model, int32_t layer, int64_t tokens, int32_t threads,
                                           int64_t* bytes) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"bytes", bytes}}); s != status::ok) return s;
    if (tokens < 0) return {status::invalid_shape, "tokens", tokens, status::relation::at_least, 0};
    if (auto const* linear = find_layer<hypic::linear_layer>(*model, layer)) {
      auto const plan = prefill_plan_of(*model, *linear, tokens);
      if (!plan) return plan.error();
      *bytes = plan->workspace_bytes(threads);
    } else if (auto const* attention = find_layer<hypic::attention_layer>(*model, layer)) {
      *bytes = attention_plan_of(*attention, tokens).workspace_bytes(threads) + hypic::scratch_bytes<int64_t>(tokens) +
               hypic::scratch_alignment;
    } else {
      return {status::out_of_range, "layer", layer, status::relation::at_most,
              static_cast<std::int64_t>(model->layout.layers.size()) - 1};
    }
    return status::ok;
  });
}

hypic_status hypic_segment_linear(hypic_model const* model, int32_t layer, hypic_rows const* rows, hypic_tensor o,
                                  hypic_record const* record, void* block, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_segment(model, record, block); s != status::ok) return s;
    auto const* shape = find_layer<hypic::linear_layer>(*model, layer);
    if (shape == nullptr) return {status::invalid_argument, "layer: it is not a linear layer"};
    hypic::query_rows_view in;
    hypic::host_exec ex;
    hypic::prefill_outputs out;
    if (auto const s =
            hypic::first_failure(rows_of(rows, in, shape->options.gates), exec_of(exec, ex), view_of(o, "o", out.o));
        s != status::ok)
      return s;
    auto const plan = prefill_plan_of(*model, *shape, record->layout.tokens());
    if (!plan) return plan.error();
    auto const body = record->layout.body(layer, static_cast<std::byte*>(block));
    auto const head = record->layout.head(layer, static_cast<std::byte*>(block));
    std::uint32_t flags = 0;
    out.heads = {&head, 1};
    out.flags = {&flags, 1};
    if (record->layout.has_body()) out.bodies = {&body, 1};
    auto const outcome =
        hypic::with_family(shape->family, [&]<class F>(F) { return hypic::segment_prefill<F>(*plan, in, out, ex); });
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
    auto const tokens = record->layout.tokens();
    if (auto const s = hypic::first_failure(
            view_of(raw, "raw", rows),
            hypic::expect_shape("raw", rows, {tokens, shape->tail_channels}, hypic::last_stride::any));
        s != status::ok)
      return s;
    auto const tail = record->layout.tail(layer, static_cast<std::byte*>(block));
    for (std::int64_t i = 0; i < tail.extent[0]; ++i)
      for (std::int64_t c = 0; c < shape->tail_channels; ++c)
        tail(i, c / tail.extent[2], c % tail.extent[2]) = rows(tokens - tail.extent[0] + i, c);
    return status::ok;
  });
}

hypic_status hypic_segment_attention(hypic_model const* model, int32_t layer, hypic_tensor q, hypic_tensor k,
                                     hypic_tensor v, hypic_tensor o, hypic_record const* record, void* block,
                                     hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_segment(model, record, block); s != status::ok) return s;
    auto const* shape = find_layer<hypic::attention_layer>(*model, layer);
    if (shape == nullptr) return {status::invalid_argument, "layer: it is not an attention layer"};
    hypic::tensor_view<float, 3> queries, keys, values, out;
    hypic::host_exec ex;
    if (auto const s = hypic::first_failure(view_of(q, "q", queries), view_of(k, "k", keys), view_of(v, "v", values),
                                            view_of(o, "o", out), exec_of(exec, ex));
        s != status::ok)
      return s;
    auto const tokens = record->layout.tokens();
    auto const plan = attention_plan_of(*shape, tokens);
    auto const need =
        plan.workspace_bytes(ex.threads) + hypic::scratch_bytes<std::int64_t>(tokens) + hypic::scratch_alignment;
    if (auto const s = hypic::expect_exec(ex, need); s != status::ok) return s;
    hypic::scratch memory{ex.workspace};
    auto* const positions = memory.take<std::int64_t>(tokens);
    std::iota(positions, positions + tokens, std::int64_t{0});
    hypic::key_value_view const cache{keys, values};
    auto const past = reinterpret_cast<std::byte*>(positions + tokens) - ex.workspace.data();
    ex.workspace = ex.workspace.subspan(static_cast<std::size_t>(past));
    auto const outcome = hypic::seam_attention(plan, queries, {positions, static_cast<std::size_t>(tokens)},
                                               {&cache, 1}, {}, out, {}, ex);
    if (outcome != status::ok) return outcome;
    auto* const bytes = static_cast<std::byte*>(block);
    auto const kept = copy_into(keys, record->layout.keys(layer, bytes), "k");
    return kept == status::ok ? copy_into(values, record->layout.values(layer, bytes), "v") : kept;
  });
}

}  // extern "C"
