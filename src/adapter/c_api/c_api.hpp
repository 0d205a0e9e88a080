// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "core/shapes.hpp"
#include "hypic.h"
#include "hypic/request/assembler.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/cache_store.hpp"

struct hypic_model {
  hypic::model_layout layout;
};
struct hypic_record {
  hypic::record_layout layout;
};
struct hypic_store {
  std::unique_ptr<hypic::cache_store> inner;
  void* context = nullptr;  ///< of a store of C functions
};
struct hypic_batch {
  hypic::batch_plan plan;
};
struct hypic_assembler {
  hypic::assembler inner;
  hypic_model model;
};

/// What the files of the C API share: how values of C become those of C++, and back.
namespace hypic::inline v0::c_api {

// ---- statuses ----

hypic_status to_c(status const& from) noexcept;
status to_cpp(hypic_status const& from) noexcept;

/// The outcome of `fn`; nothing is thrown through C.
template <class Fn>
hypic_status guarded(Fn fn) noexcept {
  try {
    return to_c(fn());
  } catch (std::exception const&) {
    return to_c(status::out_of_memory);
  }
}

/// The first of the named pointers that is null.
struct named_pointer {
  char const* name;
  void const* pointer;
};
status expect_pointers(std::initializer_list<named_pointer> pointers) noexcept;

// ---- what C gives ----

/// A copy of a struct that begins with its size: members beyond an older caller's are zero; a newer caller's are
/// refused unless they are zero.
template <class T>
status read(T const* from, char const* name, T& to) noexcept {
  if (from == nullptr) return {status::invalid_argument, name};
  auto const size = from->size;
  if (size <= sizeof(size)) {
    return {status::invalid_argument, name, static_cast<std::int64_t>(size), status::relation::at_least,
            static_cast<std::int64_t>(sizeof(T))};
  }
  auto const* const bytes = reinterpret_cast<unsigned char const*>(from);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return {status::unsupported, name, static_cast<std::int64_t>(size), status::relation::at_most,
            static_cast<std::int64_t>(sizeof(T))};
  }
  to = T{};
  std::memcpy(&to, from, std::min(size, sizeof(T)));
  return status::ok;
}

/// The elements of an array of such structs, which are as far apart as the first one's size says.
template <class T>
status read_all(T const* from, std::int64_t count, char const* name, std::vector<T>& to) {
  if (count < 0) return {status::invalid_argument, name, count, status::relation::at_least, 0};
  to.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (from == nullptr) return {status::invalid_argument, name};
    auto const* const at = reinterpret_cast<unsigned char const*>(from) + static_cast<std::size_t>(i) * from->size;
    if (auto const s = read(reinterpret_cast<T const*>(at), name, to[static_cast<std::size_t>(i)]); s != status::ok) {
      return s;
    }
  }
  return status::ok;
}

template <class T>
std::span<T const> span_of(T const* data, std::int64_t count) noexcept {
  return {data, data == nullptr || count < 0 ? 0 : static_cast<std::size_t>(count)};
}

template <int Rank>
status view_of(hypic_tensor const& from, char const* name, hypic::tensor_view<float, Rank>& to) noexcept {
  to = {};
  if (from.rank == 0) return status::ok;  // not given
  if (from.rank != Rank) return {status::invalid_shape, name, from.rank, status::relation::equal_to, Rank};
  to.data = from.data;
  std::copy_n(from.extent, Rank, to.extent.begin());
  std::copy_n(from.stride, Rank, to.stride.begin());
  return status::ok;
}

status rows_of(hypic_rows const* from, hypic::query_rows_view& to, hypic::gate_space gates) noexcept;
status exec_of(hypic_exec const* from, hypic::host_exec& to) noexcept;

// ---- keys and parts ----

hypic::record_key to_cpp(hypic_key const& from) noexcept;
hypic_key to_c(hypic::digest const& from) noexcept;
hypic_part to_c(hypic::part_id const& id) noexcept;

/// A kind that is none becomes one that no record has.
std::vector<hypic::part_id> parts_of(hypic_part const* from, std::int64_t count);

// ---- stores ----

/// What a request in C's form points to.
struct c_request {
  hypic_record record;
  std::vector<hypic_part> parts;
};
c_request c_request_of(hypic::record_layout const& layout, std::span<hypic::part_id const> parts);

/// A look-up in C's form, valid as long as both.
hypic_lookup to_c(hypic::lookup_request const& from, c_request const& with) noexcept;

// ---- models ----

/// The layer of that kind at an index, or null.
template <class Layer>
Layer const* find_layer(hypic_model const& model, std::int32_t index) noexcept {
  if (index < 0 || index >= static_cast<std::int64_t>(model.layout.layers.size())) return nullptr;
  return std::get_if<Layer>(&model.layout.layers[static_cast<std::size_t>(index)]);
}

/// Whether a record is one of that model's.
status expect_record(hypic_model const& model, hypic_record const& record);

// ---- the first pass ----

/// A sequence of a prefill, and the record that it makes.
struct piece {
  hypic::prefill_sequence sequence;
  hypic_record const* record = nullptr;
  std::byte* block = nullptr;
};

/// Checked pieces of segments; a segment that is computed in one call is a batch of one.
struct prefill_batch {
  hypic_model const& model;
  std::span<piece const> pieces;
  std::int64_t total_rows = 0;
  std::int64_t slots = 0;

  status linear(std::int32_t layer, hypic_rows const* rows, hypic_tensor const& o, hypic_tensor const& states,
                std::uint32_t* flags, hypic_exec const* exec) const;
  status attention(std::int32_t layer, hypic_tensor const& q, hypic_tensor const& k, hypic_tensor const& v,
                   hypic_tensor const& o, hypic_exec const* exec) const;
  /// Scratch of one layer's call, which is in the model.
  std::int64_t workspace_bytes(std::int32_t layer, int threads) const;
};

/// Writes a record's tail: element(t, c) is the raw input of its token t in channel c.
template <class Element>
void write_tail(hypic_record const& record, std::int32_t layer, std::byte* block, Element const& element) {
  auto const tail = record.layout.tail(layer, block);
  auto const [rows, groups, width] = tail.extent;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t c = 0; c < groups * width; ++c)
      tail(i, c / width, c % width) = element(record.layout.tokens() - rows + i, c);
}

}  // namespace hypic::inline v0::c_api
