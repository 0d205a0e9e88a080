// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/model_layout.hpp"

#include <algorithm>
#include <cmath>

#include "hypic/core/instruction_set.hpp"
#include "hypic/core/version.hpp"
#include "hypic/segment/seam_attention.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/sha256.hpp"
#include "store/encoder.hpp"
#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

constexpr family_id all_families[] = {family_id::retnet, family_id::gla, family_id::gated_deltanet, family_id::kda};

status expect_at_least(char const* argument, std::int64_t found, std::int64_t least) noexcept {
  if (found >= least) return status::ok;
  return {status::invalid_shape, argument, found, status::relation::at_least, least};
}

status expect_finite(char const* argument, double found) noexcept {
  return std::isfinite(found) ? status{} : status{status::invalid_argument, argument};
}

status check(std::optional<rotary_embedding> const& rotary, std::int64_t key_dim) noexcept {
  if (!rotary) return status::ok;
  for (auto const frequency : rotary->frequencies) {
    if (auto const s = expect_finite("rotary.frequencies", frequency); s != status::ok) return s;
  }
  if (rotary->rotary_dim() <= key_dim) return status::ok;
  return {status::unsupported, "rotary_dim", rotary->rotary_dim(), status::relation::at_most, key_dim};
}

status check(linear_layer const& layer) noexcept {
  if (std::ranges::find(all_families, layer.family) == std::end(all_families)) return {status::unsupported, "family"};
  if (auto const s = validate(layer.dims); s != status::ok) return s;
  if (auto const s = expect_finite("q_scale", layer.options.q_scale); s != status::ok) return s;
  if (auto const s = expect_finite("l2_epsilon", layer.options.l2_epsilon); s != status::ok) return s;
  if (auto const s = expect_at_least("tail_rows", layer.tail_rows, 0); s != status::ok) return s;
  if (auto const s = expect_at_least("tail_channels", layer.tail_channels, layer.tail_rows > 0 ? 1 : 0);
      s != status::ok) {
    return s;
  }
  if (auto const s = expect_at_least("tail_groups", layer.tail_groups, 1); s != status::ok) return s;
  if (layer.tail_channels % layer.tail_groups != 0) {
    return {status::invalid_shape, "tail_channels", layer.tail_channels, status::relation::multiple_of,
            layer.tail_groups};
  }
  auto const form = with_family(layer.family, [](auto family) { return family.form; });
  if (layer.rotary && form != operator_form::scalar) {
    return {status::unsupported, "rotary embedding under a diagonal or dense operator"};
  }
  return check(layer.rotary, layer.dims.key_dim);
}

status check(attention_layer const& layer) noexcept {
  if (auto const s = expect_at_least("kv_heads", layer.kv_heads, 1); s != status::ok) return s;
  if (auto const s = expect_at_least("query_heads", layer.query_heads, 1); s != status::ok) return s;
  if (layer.query_heads % layer.kv_heads != 0) {
    return {status::invalid_shape, "query_heads", layer.query_heads, status::relation::multiple_of, layer.kv_heads};
  }
  if (auto const s = expect_at_least("key_dim", layer.key_dim, 1); s != status::ok) return s;
  if (auto const s = expect_at_least("value_dim", layer.value_dim, 1); s != status::ok) return s;
  if (auto const s = expect_finite("scale", layer.scale); s != status::ok) return s;
  if (auto const s = expect_finite("soft_cap", layer.soft_cap); s != status::ok) return s;
  return check(layer.rotary, layer.key_dim);
}

void encode(encoder& out, std::optional<rotary_embedding> const& rotary) {
  out.number(rotary.has_value());
  if (!rotary) return;
  out.numbers(rotary->frequencies);
  out.number(static_cast<int>(rotary->pairing));
}

void encode(encoder& out, linear_layer const& layer) {
  out.text("linear");
  out.number(static_cast<int>(layer.family));
  for (auto const extent : {layer.dims.key_heads, layer.dims.value_heads, layer.dims.key_dim, layer.dims.value_dim}) {
    out.number(extent);
  }
  out.number(layer.options.q_scale);
  out.number(layer.options.l2_normalize);
  out.number(layer.options.l2_epsilon);
  out.number(static_cast<int>(layer.options.gates));
  out.number(layer.tail_rows);
  out.number(layer.tail_channels);
  out.number(layer.tail_groups);
  encode(out, layer.rotary);
}

void encode(encoder& out, attention_layer const& layer) {
  out.text("attention");
  for (auto const extent : {layer.query_heads, layer.kv_heads, layer.key_dim, layer.value_dim}) out.number(extent);
  out.number(layer.scale);
  out.number(layer.soft_cap);
  encode(out, layer.rotary);
}

/// What the library itself adds to the bits: the version, the back end with its instruction set, and the sizes at which
/// it splits its work.
void encode_library(encoder& out) {
  out.text("host");
  out.text(host_instruction_set());
  out.number(header_version.major);
  out.number(header_version.minor);
  out.number(header_version.patch);
  for (auto const family : all_families) out.number(prefill_chunk(family));
  out.number(attention_block());
}

}  // namespace

attention_plan plan_attention(attention_layer const& layer, std::int64_t total_rows,
                              std::vector<attention_sequence> sequences) {
  return {.query_heads = layer.query_heads,
          .kv_heads = layer.kv_heads,
          .key_dim = layer.key_dim,
          .value_dim = layer.value_dim,
          .scale = layer.scale,
          .soft_cap = layer.soft_cap,
          .total_rows = total_rows,
          .sequences = std::move(sequences)};
}

status validate(model_layout const& layout) {
  if (auto const s = expect_at_least("head_rows", layout.head_rows, 0); s != status::ok) return s;
  if (auto const s = expect_at_least("max_positions", layout.max_positions, 0); s != status::ok) return s;
  for (auto const& layer : layout.layers) {
    auto const outcome = std::visit([](auto const& kind) { return check(kind); }, layer);
    if (outcome != status::ok) return outcome;
  }
  return status::ok;
}

result<std::string> model_fingerprint(model_layout const& layout, std::string_view host) {
  if (host.empty()) return status{status::invalid_argument, "host"};
  if (auto const s = validate(layout); s != status::ok) return s;

  return guarded([&]() -> result<std::string> {
    encoder fields;
    fields.text("hypic model");
    encode_library(fields);
    fields.text(host);
    fields.number(layout.head_rows);
    fields.number(layout.max_positions);
    fields.number(layout.layers.size());
    for (auto const& layer : layout.layers) {
      std::visit([&](auto const& kind) { encode(fields, kind); }, layer);
    }
    auto const name = sha256({fields.written()});
    if (!name) return name.error();
    return to_hex(*name);
  });
}

}  // namespace hypic::inline v0
