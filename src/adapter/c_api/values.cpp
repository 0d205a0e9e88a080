// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "adapter/c_api/c_api.hpp"
#include "hypic/core/version.hpp"

namespace hypic::inline v0::c_api {

hypic_status to_c(status const& from) noexcept {
  return {from.value(),
          static_cast<std::int32_t>(from.wanted()),
          static_cast<std::int32_t>(from.measured()),
          from.dimension(),
          from.argument(),
          from.found(),
          from.expected()};
}

status to_cpp(hypic_status const& from) noexcept {
  bool const known = from.code >= status::ok && from.code <= status::out_of_memory && from.relation >= 0 &&
                     from.relation <= static_cast<std::int32_t>(status::relation::multiple_of) && from.measure >= 0 &&
                     from.measure <= static_cast<std::int32_t>(status::measure::stride);
  if (!known) return {status::backend_failure, "a status that is none"};
  return status{static_cast<status::code>(from.code), from.argument == nullptr ? "" : from.argument, from.found,
                static_cast<status::relation>(from.relation), from.expected}
      .in(static_cast<status::measure>(from.measure), from.dimension);
}

status expect_pointers(std::initializer_list<named_pointer> pointers) noexcept {
  for (auto const& [name, pointer] : pointers)
    if (pointer == nullptr) return {status::invalid_argument, name};
  return status::ok;
}

status rows_of(hypic_rows const* from, hypic::query_rows_view& to, hypic::gate_space gates) noexcept {
  hypic_rows rows{};
  if (auto const s = read(from, "rows", rows); s != status::ok) return s;
  hypic::tensor_view<float, 3> q, k, v, g;
  hypic::tensor_view<float, 2> beta;
  auto const outcome =
      hypic::first_failure(view_of(rows.q, "rows.q", q), view_of(rows.k, "rows.k", k), view_of(rows.v, "rows.v", v),
                           view_of(rows.gates, "rows.gates", g), view_of(rows.beta, "rows.beta", beta));
  to = {.q = q, .rows = {k, v, g, beta}, .gates = gates};
  return outcome;
}

status exec_of(hypic_exec const* from, hypic::host_exec& to) noexcept {
  hypic_exec ex{};
  if (auto const s = read(from, "exec", ex); s != status::ok) return s;
  to = {.workspace = {static_cast<std::byte*>(ex.workspace), ex.workspace == nullptr ? 0 : ex.workspace_bytes},
        .threads = ex.threads};
  return status::ok;
}

hypic::record_key to_cpp(hypic_key const& from) noexcept {
  hypic::record_key key;
  std::memcpy(key.bytes.data(), from.bytes, sizeof from.bytes);
  return key;
}
hypic_key to_c(hypic::digest const& from) noexcept {
  hypic_key key;
  std::memcpy(key.bytes, from.data(), sizeof key.bytes);
  return key;
}

hypic_part to_c(hypic::part_id const& id) noexcept { return {id.layer, static_cast<std::int32_t>(id.kind), id.head}; }

std::vector<hypic::part_id> parts_of(hypic_part const* from, std::int64_t count) {
  std::vector<hypic::part_id> parts;
  for (auto const& part : span_of(from, count)) {
    bool const known = part.kind >= HYPIC_HEAD_KEYS && part.kind <= HYPIC_KEYS_VALUES;
    parts.push_back({known ? part.layer : -1, static_cast<hypic::part_kind>(known ? part.kind : 0), part.head});
  }
  return parts;
}

}  // namespace hypic::inline v0::c_api

using namespace hypic::c_api;
using hypic::status;

extern "C" {

void hypic_version(int32_t* major, int32_t* minor, int32_t* patch) {
  auto const version = hypic::library_version();
  if (major != nullptr) *major = version.major;
  if (minor != nullptr) *minor = version.minor;
  if (patch != nullptr) *patch = version.patch;
}

size_t hypic_message(hypic_status status, char* text, size_t capacity) {
  try {
    auto const words = hypic::message(to_cpp(status));
    if (text != nullptr && capacity > 0) {
      auto const kept = std::min(words.size(), capacity - 1);
      std::memcpy(text, words.data(), kept);
      text[kept] = '\0';
    }
    return words.size();
  } catch (std::exception const&) {
    if (text != nullptr && capacity > 0) *text = '\0';
    return 0;
  }
}

}  // extern "C"
