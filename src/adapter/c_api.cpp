// SPDX-License-Identifier: Apache-2.0
#include "hypic.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/calls.hpp"
#include "core/scratch.hpp"
#include "core/shapes.hpp"
#include "hypic/core/version.hpp"
#include "hypic/request/assembler.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/memory_store.hpp"

struct hypic_model {
  hypic::model_layout layout;
};
struct hypic_record {
  hypic::record_layout layout;
};
struct hypic_store {
  std::unique_ptr<hypic::cache_store> inner;
};
struct hypic_batch {
  hypic::batch_plan plan;
};
struct hypic_assembler {
  hypic::assembler inner;
  hypic_model model;
};

namespace {

using hypic::status;

// ---- statuses ----

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
status expect_pointers(std::initializer_list<named_pointer> pointers) noexcept {
  for (auto const& [name, pointer] : pointers)
    if (pointer == nullptr) return {status::invalid_argument, name};
  return status::ok;
}

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

/// A kind that is none becomes one that no record has.
std::vector<hypic::part_id> parts_of(hypic_part const* from, std::int64_t count) {
  std::vector<hypic::part_id> parts;
  for (auto const& part : span_of(from, count)) {
    bool const known = part.kind >= HYPIC_HEAD_KEYS && part.kind <= HYPIC_KEYS_VALUES;
    parts.push_back({known ? part.layer : -1, static_cast<hypic::part_kind>(known ? part.kind : 0), part.head});
  }
  return parts;
}

// ---- models ----

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

/// The layer of that kind at an index, or null.
template <class Layer>
Layer const* find_layer(hypic_model const& model, std::int32_t index) noexcept {
  if (index < 0 || index >= static_cast<std::int64_t>(model.layout.layers.size())) return nullptr;
  return std::get_if<Layer>(&model.layout.layers[static_cast<std::size_t>(index)]);
}

// ---- stores ----

/// A store of C functions. Requests reach it in C's form, which lives as the contract says: until the ticket's release.
class table_store final : public hypic::cache_store {
 public:
  explicit table_store(hypic_store_table const& table) noexcept : table_(table) {}
  table_store(table_store const&) = delete;
  table_store& operator=(table_store const&) = delete;
  ~table_store() override {
    if (table_.destroy != nullptr) table_.destroy(table_.context);
  }

  hypic::result<hypic::ticket> begin(std::span<hypic::lookup_request const> requests) noexcept override {
    try {
      // All that allocates comes before the caller's store knows of it: a failure leaves no ticket behind.
      std::map<std::uint64_t, std::list<c_request>> made;
      auto& kept = made[0];
      std::vector<hypic_lookup> lookups;
      if (auto const s = in_c(requests, kept, lookups); s != status::ok) return s;
      std::uint64_t ticket = 0;
      auto const outcome =
          to_cpp(table_.begin(table_.context, lookups.data(), static_cast<std::int64_t>(lookups.size()), &ticket));
      if (outcome != status::ok) return outcome;
      auto named = made.extract(made.begin());
      named.key() = ticket;
      std::lock_guard const lock(mutex_);
      asked_.insert(std::move(named));
      return static_cast<hypic::ticket>(ticket);
    } catch (std::exception const&) {
      return status{status::backend_failure, "memory"};
    }
  }

  status poll(hypic::ticket which, std::span<hypic::lookup_result> results) noexcept override {
    try {
      std::vector<hypic_answer> answers(results.size());
      auto const outcome = to_cpp(table_.poll(table_.context, static_cast<std::uint64_t>(which), answers.data(),
                                              static_cast<std::int64_t>(answers.size())));
      if (outcome != status::ok) return outcome;
      std::ranges::transform(answers, results.begin(), [](auto const& answer) { return result_of(answer); });
      return outcome;
    } catch (std::exception const&) {
      return {status::backend_failure, "memory"};
    }
  }

  status publish(std::span<hypic::publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (outcomes.size() != requests.size()) {
      return {status::invalid_shape, "outcomes", static_cast<std::int64_t>(outcomes.size()), status::relation::equal_to,
              static_cast<std::int64_t>(requests.size())};
    }
    std::ranges::fill(outcomes, status{status::backend_failure, "memory"});
    try {
      std::list<c_request> kept;
      std::vector<hypic_publication> publications;
      if (auto const s = in_c(requests, kept, publications); s != status::ok) {
        std::ranges::fill(outcomes, s);
        return s;
      }
      std::vector<hypic_status> told(publications.size());
      auto const outcome = to_cpp(table_.publish(table_.context, publications.data(),
                                                 static_cast<std::int64_t>(publications.size()), told.data()));
      std::ranges::transform(told, outcomes.begin(), [](auto const& one) { return to_cpp(one); });
      return outcome;
    } catch (std::exception const&) {
      return {status::backend_failure, "memory"};
    }
  }

  status release(hypic::ticket which, hypic::fence after) noexcept override {
    auto const ticket = static_cast<std::uint64_t>(which);
    std::unique_ptr<hypic::fence> fence;
    if (after.reached != nullptr) {
      fence.reset(new (std::nothrow) hypic::fence(after));
      if (fence == nullptr) return {status::backend_failure, "memory"};
    }
    auto const outcome =
        to_cpp(table_.release(table_.context, ticket, fence == nullptr ? nullptr : reached, fence.get()));
    if (outcome != status::ok) return outcome;
    static_cast<void>(fence.release());  // ends when it is reached
    std::lock_guard const lock(mutex_);
    asked_.erase(ticket);
    return outcome;
  }

 private:
  static int reached(void* context) {
    auto* const after = static_cast<hypic::fence*>(context);
    if (!after->reached(after->context)) return 0;
    delete after;
    return 1;
  }

  static hypic::lookup_result result_of(hypic_answer const& from) noexcept {
    if (from.state == HYPIC_PENDING) return {};
    if (from.state == HYPIC_HIT) {
      return {
          hypic::lookup_state::hit, hypic::miss_reason::none, {static_cast<std::byte const*>(from.block), from.bytes}};
    }
    bool const known = from.reason > HYPIC_NO_MISS && from.reason <= HYPIC_STORE_FAILURE;
    return {hypic::lookup_state::miss,
            known ? static_cast<hypic::miss_reason>(from.reason) : hypic::miss_reason::store_failure,
            {}};
  }

  /// What a request in C's form points to.
  struct c_request {
    hypic_record record;
    std::vector<hypic_part> parts;
  };

  template <class Request, class CRequest>
  static status in_c(std::span<Request const> requests, std::list<c_request>& kept, std::vector<CRequest>& given) {
    for (auto const& request : requests) {
      if (request.layout == nullptr) return {status::invalid_argument, "requests.layout"};
      auto& copy = kept.emplace_back(c_request{{*request.layout}, {}});
      for (auto const& id : request.parts) copy.parts.push_back(to_c(id));
      given.push_back(to_c_request(request, copy));
    }
    return status::ok;
  }

  static hypic_lookup to_c_request(hypic::lookup_request const& from, c_request const& with) noexcept {
    return {sizeof(hypic_lookup),
            to_c(from.key.bytes),
            from.tokens.data(),
            static_cast<std::int64_t>(from.tokens.size()),
            &with.record,
            with.parts.empty() ? nullptr : with.parts.data(),
            static_cast<std::int64_t>(with.parts.size())};
  }
  static hypic_publication to_c_request(hypic::publish_request const& from, c_request const& with) noexcept {
    return {sizeof(hypic_publication),
            to_c(from.key.bytes),
            from.tokens.data(),
            static_cast<std::int64_t>(from.tokens.size()),
            &with.record,
            from.block.data(),
            from.block.size(),
            reinterpret_cast<hypic_digest const*>(from.digests.data()),
            static_cast<std::int64_t>(from.digests.size()),
            with.parts.empty() ? nullptr : with.parts.data(),
            static_cast<std::int64_t>(with.parts.size()),
            from.value};
  }

  hypic_store_table table_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::list<c_request>> asked_;
};
static_assert(sizeof(hypic_digest) == sizeof(hypic::digest));

/// C's answer to whether the work is over, as a fence. It lives until it is reached.
struct c_fence {
  hypic_reached reached;
  void* context;
};
bool c_fence_reached(void* context) noexcept {
  auto* const fence = static_cast<c_fence*>(context);
  if (fence->reached(fence->context) == 0) return false;
  delete fence;
  return true;
}

// ---- segments ----

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

hypic_status hypic_memory_store_create(int64_t capacity_bytes, hypic_store** store) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    *store = new hypic_store{std::make_unique<hypic::memory_store>(capacity_bytes)};
    return status::ok;
  });
}

hypic_status hypic_table_store_create(hypic_store_table const* table, hypic_store** store) {
  return guarded([&]() -> status {
    hypic_store_table given{};
    if (auto const s = hypic::first_failure(expect_pointers({{"store", store}}), read(table, "table", given));
        s != status::ok)
      return s;
    if (given.begin == nullptr) return {status::invalid_argument, "table.begin"};
    if (given.poll == nullptr) return {status::invalid_argument, "table.poll"};
    if (given.publish == nullptr) return {status::invalid_argument, "table.publish"};
    if (given.release == nullptr) return {status::invalid_argument, "table.release"};
    auto made = std::make_unique<hypic_store>();
    made->inner = std::make_unique<table_store>(given);
    *store = made.release();
    return status::ok;
  });
}
void hypic_store_destroy(hypic_store* store) { delete store; }

hypic_status hypic_store_begin(hypic_store* store, hypic_lookup const* lookups, int64_t count, uint64_t* ticket) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}, {"ticket", ticket}}); s != status::ok) return s;
    std::vector<hypic_lookup> given;
    if (auto const s = read_all(lookups, count, "lookups", given); s != status::ok) return s;
    std::vector<std::vector<hypic::part_id>> parts;
    std::vector<hypic::lookup_request> requests;
    for (auto const& one : given) {
      parts.push_back(parts_of(one.parts, one.part_count));
      requests.push_back({to_cpp(one.key), span_of(one.tokens, one.token_count),
                          one.record == nullptr ? nullptr : &one.record->layout, parts.back()});
    }
    auto const begun = store->inner->begin(requests);
    if (!begun) return begun.error();
    *ticket = static_cast<uint64_t>(*begun);
    return status::ok;
  });
}

hypic_status hypic_store_poll(hypic_store* store, uint64_t ticket, hypic_answer* answers, int64_t count) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    if (count < 0 || (count > 0 && answers == nullptr)) return {status::invalid_argument, "answers"};
    std::vector<hypic::lookup_result> results(static_cast<std::size_t>(count));
    auto const outcome = store->inner->poll(static_cast<hypic::ticket>(ticket), results);
    if (outcome != status::ok) return outcome;
    std::ranges::transform(results, answers, [](auto const& one) {
      return hypic_answer{static_cast<int32_t>(one.state), static_cast<int32_t>(one.reason), one.block.data(),
                          one.block.size()};
    });
    return status::ok;
  });
}

hypic_status hypic_store_publish(hypic_store* store, hypic_publication const* publications, int64_t count,
                                 hypic_status* outcomes) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    std::vector<hypic_publication> given;
    if (auto const s = read_all(publications, count, "publications", given); s != status::ok) return s;
    if (count > 0 && outcomes == nullptr) return {status::invalid_argument, "outcomes"};
    std::vector<std::vector<hypic::part_id>> parts;
    std::vector<std::vector<hypic::digest>> digests;
    std::vector<hypic::publish_request> requests;
    for (auto const& one : given) {
      parts.push_back(parts_of(one.parts, one.part_count));
      auto& theirs = digests.emplace_back();
      for (auto const& each : span_of(one.digests, one.digest_count)) theirs.push_back(to_cpp(each).bytes);
      requests.push_back({to_cpp(one.key),
                          span_of(one.tokens, one.token_count),
                          one.record == nullptr ? nullptr : &one.record->layout,
                          {static_cast<std::byte const*>(one.block), one.block == nullptr ? 0 : one.bytes},
                          theirs,
                          parts.back(),
                          one.value});
    }
    std::vector<status> told(requests.size());
    auto const outcome = store->inner->publish(requests, told);
    std::ranges::transform(told, outcomes, [](status const& one) { return to_c(one); });
    return outcome;
  });
}

hypic_status hypic_store_release(hypic_store* store, uint64_t ticket, hypic_reached reached, void* context) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"store", store}}); s != status::ok) return s;
    auto const which = static_cast<hypic::ticket>(ticket);
    if (reached == nullptr) return store->inner->release(which, {});
    auto fence = std::make_unique<c_fence>(c_fence{reached, context});
    auto const outcome = store->inner->release(which, {c_fence_reached, fence.get()});
    if (outcome == status::ok) static_cast<void>(fence.release());
    return outcome;
  });
}

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

hypic_status hypic_batch_create(hypic_model const* model, hypic_request const* requests, int64_t count,
                                hypic_batch** batch) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"batch", batch}}); s != status::ok) return s;
    std::vector<hypic_request> given;
    if (auto const s = read_all(requests, count, "requests", given); s != status::ok) return s;
    std::vector<hypic::batch_request> planned;
    for (auto const& one : given) {
      std::vector<hypic_span> spans;
      if (auto const s = read_all(one.spans, one.span_count, "requests.spans", spans); s != status::ok) return s;
      std::vector<hypic::prompt_span> prompt;
      for (auto const& span : spans) {
        if (span.kind != HYPIC_CACHED && span.kind != HYPIC_FRESH) {
          return {status::invalid_argument, "requests.spans.kind", span.kind, status::relation::at_most, HYPIC_FRESH};
        }
        auto const tokens = span_of(span.tokens, span.token_count);
        prompt.push_back({span.kind == HYPIC_CACHED ? hypic::span_kind::cached : hypic::span_kind::fresh,
                          {tokens.begin(), tokens.end()},
                          to_cpp(span.key)});
      }
      auto plan = hypic::plan_request(model->layout, prompt,
                                      {.seam_rows = one.seam_rows,
                                       .generated_tokens = one.generated_tokens,
                                       .preceding_tokens = one.preceding_tokens});
      if (!plan) return plan.error();
      planned.push_back({std::move(plan).value(), one.initial_slot, one.final_slot});
    }
    auto made = hypic::plan_batch(std::move(planned));
    if (!made) return made.error();
    *batch = new hypic_batch{std::move(made).value()};
    return status::ok;
  });
}
void hypic_batch_destroy(hypic_batch* batch) { delete batch; }
int64_t hypic_batch_row_count(hypic_batch const* batch) { return batch->plan.rows(); }
void hypic_batch_rows(hypic_batch const* batch, int32_t* tokens, int64_t* positions) {
  for (auto const& request : batch->plan.requests) {
    tokens = std::ranges::copy(request.plan.row_tokens, tokens).out;
    positions = std::ranges::copy(request.plan.row_positions, positions).out;
  }
}
int64_t hypic_batch_record_count(hypic_batch const* batch) { return static_cast<int64_t>(batch->plan.records.size()); }
hypic_key hypic_batch_record(hypic_batch const* batch, int64_t index) {
  return to_c(batch->plan.records[static_cast<std::size_t>(index)].bytes);
}
int64_t hypic_batch_run_count(hypic_batch const* batch) { return static_cast<int64_t>(batch->plan.runs.size()); }
void hypic_batch_run(hypic_batch const* batch, int64_t index, int64_t* first_row, int64_t* rows) {
  auto const& run = batch->plan.runs[static_cast<std::size_t>(index)];
  *first_row = run.first_row;
  *rows = run.rows;
}

hypic_status hypic_assembler_create(hypic_model const* model, hypic_batch const* batch,
                                    hypic_record const* const* records, void const* const* blocks, int64_t state_slots,
                                    hypic_assembler** assembler) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"model", model}, {"batch", batch}, {"assembler", assembler}}); s != status::ok)
      return s;
    std::vector<hypic::record_view> views;
    for (std::size_t i = 0; i < batch->plan.records.size(); ++i) {
      if (auto const s = expect_pointers({{"records", records}, {"blocks", blocks}}); s != status::ok) return s;
      if (auto const s = expect_pointers({{"records", records[i]}, {"blocks", blocks[i]}}); s != status::ok) return s;
      views.push_back({&records[i]->layout, static_cast<std::byte const*>(blocks[i])});
    }
    auto made = hypic::assembler::make(model->layout, batch->plan, views, state_slots);
    if (!made) return made.error();
    *assembler = new hypic_assembler{std::move(made).value(), *model};
    return status::ok;
  });
}
void hypic_assembler_destroy(hypic_assembler* assembler) { delete assembler; }
int64_t hypic_assembler_workspace_bytes(hypic_assembler const* assembler, int32_t threads) {
  return assembler->inner.workspace_bytes(threads);
}

hypic_status hypic_assembler_tails(hypic_assembler const* assembler, int32_t layer, hypic_tensor raw, hypic_tensor pool,
                                   hypic_tensor tails, hypic_exec const* exec) {
  return guarded([&]() -> status {
    hypic::tensor_view<float, 2> rows;
    hypic::tensor_view<float, 3> slots, out;
    hypic::host_exec ex;
    if (auto const s =
            hypic::first_failure(expect_pointers({{"assembler", assembler}}), view_of(raw, "raw", rows),
                                 view_of(pool, "pool", slots), view_of(tails, "tails", out), exec_of(exec, ex));
        s != status::ok)
      return s;
    return assembler->inner.tails(layer, rows, slots, out, ex);
  });
}

hypic_status hypic_assembler_linear(hypic_assembler const* assembler, int32_t layer, hypic_rows const* rows,
                                    hypic_tensor o, hypic_tensor states, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"assembler", assembler}}); s != status::ok) return s;
    hypic::query_rows_view in;
    hypic::repair_outputs out;
    hypic::host_exec ex;
    auto const* shape = find_layer<hypic::linear_layer>(assembler->model, layer);
    if (shape == nullptr) return {status::invalid_argument, "layer: it is not a linear layer"};
    if (auto const s = hypic::first_failure(rows_of(rows, in, shape->options.gates), view_of(o, "o", out.o),
                                            view_of(states, "states", out.states), exec_of(exec, ex));
        s != status::ok)
      return s;
    return assembler->inner.linear(layer, in, out, ex);
  });
}

hypic_status hypic_assembler_attention(hypic_assembler const* assembler, int32_t layer, hypic_tensor q, hypic_tensor k,
                                       hypic_tensor v, hypic_tensor const* keys, hypic_tensor const* values,
                                       hypic_tensor o, hypic_exec const* exec) {
  return guarded([&]() -> status {
    if (auto const s = expect_pointers({{"assembler", assembler}, {"keys", keys}, {"values", values}}); s != status::ok)
      return s;
    hypic::tensor_view<float, 3> queries, new_keys, new_values, out;
    hypic::host_exec ex;
    if (auto const s = hypic::first_failure(view_of(q, "q", queries), view_of(k, "k", new_keys),
                                            view_of(v, "v", new_values), view_of(o, "o", out), exec_of(exec, ex));
        s != status::ok)
      return s;
    std::vector<hypic::request_cache> caches(assembler->inner.plan().requests.size());
    for (std::size_t i = 0; i < caches.size(); ++i)
      if (auto const s = hypic::first_failure(view_of(keys[i], "keys", caches[i].keys),
                                              view_of(values[i], "values", caches[i].values));
          s != status::ok)
        return s;
    return assembler->inner.attention(layer, queries, new_keys, new_values, caches, out, ex);
  });
}

}  // extern "C"
