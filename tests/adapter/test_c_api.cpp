// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hypic.h"
#include "hypic/core/version.hpp"
#include "hypic/store/contract_kit.hpp"
#include "hypic/store/memory_store.hpp"
#include "store/store_data.hpp"

using namespace hypic;

namespace {

constexpr std::int64_t capacity = 512 * 1024;

std::string words(hypic_status outcome) {
  std::string text(hypic_message(outcome, nullptr, 0) + 1, '\0');
  hypic_message(outcome, text.data(), text.size());
  text.pop_back();
  return text;
}

status to_cpp(hypic_status const& from) {
  return {static_cast<status::code>(from.code), from.argument, from.found, static_cast<status::relation>(from.relation),
          from.expected};
}

hypic_layer linear_layer_of(std::int32_t value_dim) {
  hypic_layer layer{};
  layer.size = sizeof layer;
  layer.kind = HYPIC_LINEAR;
  layer.family = HYPIC_GATED_DELTANET;
  layer.key_heads = layer.value_heads = 2;
  layer.key_dim = 4;
  layer.value_dim = value_dim;
  layer.q_scale = 1.0f;
  layer.tail_rows = 3;
  layer.tail_channels = 16;
  layer.tail_groups = 2;
  return layer;
}

hypic_model* make_model(std::int32_t value_dim) {
  auto const layer = linear_layer_of(value_dim);
  hypic_model_info info{};
  info.size = sizeof info;
  info.layers = &layer;
  info.layer_count = 1;
  info.head_rows = 8;
  hypic_model* model = nullptr;
  REQUIRE(words(hypic_model_create(&info, &model)) == "ok");
  return model;
}

// The memory store's verbs as C functions: what a host in C would write.
hypic_store_table table_over(hypic_store* inner) {
  hypic_store_table table{};
  table.size = sizeof table;
  table.context = inner;
  table.begin = [](void* of, hypic_lookup const* lookups, std::int64_t count, std::uint64_t* ticket) {
    return hypic_store_begin(static_cast<hypic_store*>(of), lookups, count, ticket);
  };
  table.poll = [](void* of, std::uint64_t ticket, hypic_answer* answers, std::int64_t count) {
    return hypic_store_poll(static_cast<hypic_store*>(of), ticket, answers, count);
  };
  table.publish = [](void* of, hypic_publication const* publications, std::int64_t count, hypic_status* outcomes) {
    return hypic_store_publish(static_cast<hypic_store*>(of), publications, count, outcomes);
  };
  table.release = [](void* of, std::uint64_t ticket, hypic_reached reached, void* context) {
    return hypic_store_release(static_cast<hypic_store*>(of), ticket, reached, context);
  };
  table.destroy = [](void* of) { hypic_store_destroy(static_cast<hypic_store*>(of)); };
  return table;
}

hypic_store* make_table_store() {
  hypic_store *inner = nullptr, *store = nullptr;
  REQUIRE(words(hypic_memory_store_create(capacity, &inner)) == "ok");
  auto const table = table_over(inner);
  REQUIRE(words(hypic_table_store_create(&table, &store)) == "ok");
  return store;
}

}  // namespace

TEST_CASE("The version and the words of statuses are those of the library", "[adapter][c_api]") {
  std::int32_t major = -1, minor = -1, patch = -1;
  hypic_version(&major, &minor, &patch);
  CHECK((major == HYPIC_VERSION_MAJOR && minor == HYPIC_VERSION_MINOR && patch == HYPIC_VERSION_PATCH));
  hypic_version(nullptr, nullptr, nullptr);

  hypic_status const shape{HYPIC_INVALID_SHAPE, 1, 1, 2, "q", 15, 16};
  CHECK(words(shape) == "invalid_shape: q.extent[2] is 15, expected equal to 16");
  char cut[8];
  CHECK(hypic_message(shape, cut, sizeof cut) == words(shape).size());
  CHECK(std::string(cut) == "invalid");
  CHECK(words({99, 0, 0, 0, nullptr, 0, 0}) == "backend_failure: a status that is none reported a failure");
}

TEST_CASE("A model of C has the fingerprint, the keys and the records of the same model in C++", "[adapter][c_api]") {
  linear_layer linear;
  linear.family = family_id::gated_deltanet;
  linear.dims = {2, 2, 4, 4};
  linear.options.l2_epsilon = 0.0f;
  linear.tail_rows = 3;
  linear.tail_channels = 16;
  linear.tail_groups = 2;
  model_layout const layout{.layers = {linear}, .head_rows = 8};

  auto* const model = make_model(4);
  char name[65];
  REQUIRE(words(hypic_model_fingerprint(model, "weights", name)) == "ok");
  CHECK(*model_fingerprint(layout, "weights") == name);

  std::int32_t const tokens[] = {1, 2, 3};
  hypic_identity identity{};
  identity.size = sizeof identity;
  identity.tokens = tokens;
  identity.token_count = 3;
  identity.model = name;
  identity.tenant = "tenant";
  hypic_key key;
  REQUIRE(words(hypic_make_key(&identity, &key)) == "ok");
  auto const wanted = *make_record_key({.tokens = tokens, .model = name, .tenant = "tenant"});
  CHECK(std::memcmp(key.bytes, wanted.bytes.data(), 32) == 0);

  hypic_record* record = nullptr;
  REQUIRE(words(hypic_record_create(model, 20, &record)) == "ok");
  auto const same = *record_layout::make(layout, 20);
  CHECK(hypic_record_bytes(record) == same.bytes());
  REQUIRE(hypic_record_part_count(record) == static_cast<std::int64_t>(same.parts().size()));
  for (std::int64_t i = 0; i < hypic_record_part_count(record); ++i) {
    auto const part = hypic_record_part(record, i);
    auto const& id = same.parts()[static_cast<std::size_t>(i)].id;
    CHECK((part.layer == id.layer && part.kind == static_cast<std::int32_t>(id.kind) && part.head == id.head));
  }
  hypic_record_destroy(record);
  hypic_model_destroy(model);
  hypic_model_destroy(nullptr);
}

TEST_CASE("A store of C functions finds what was published through it, in parts and with a fence", "[adapter][c_api]") {
  auto* const model = make_model(4);
  auto* const store = make_table_store();
  hypic_record* record = nullptr;
  REQUIRE(words(hypic_record_create(model, 20, &record)) == "ok");
  std::vector<std::int32_t> tokens(20, 5);
  std::vector<std::byte> block(static_cast<std::size_t>(hypic_record_bytes(record)));
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i);
  auto const count = hypic_record_part_count(record);
  std::vector<hypic_digest> digests(static_cast<std::size_t>(count));
  REQUIRE(words(hypic_record_digests(record, block.data(), digests.data())) == "ok");
  hypic_key key{};
  key.bytes[0] = 7;
  hypic_part const first = hypic_record_part(record, 0);

  hypic_publication publication{};
  publication.size = sizeof publication;
  publication.key = key;
  publication.tokens = tokens.data();
  publication.token_count = 20;
  publication.record = record;
  publication.block = block.data();
  publication.bytes = block.size();
  publication.digests = digests.data();
  publication.digest_count = count;
  publication.parts = &first;
  publication.part_count = 1;
  hypic_status outcome{};
  REQUIRE(words(hypic_store_publish(store, &publication, 1, &outcome)) == "ok");
  CHECK(words(outcome) == "ok");

  hypic_lookup lookup{};
  lookup.size = sizeof lookup;
  lookup.key = key;
  lookup.tokens = tokens.data();
  lookup.token_count = 20;
  lookup.record = record;
  auto const look_up = [&](std::uint64_t& ticket) {
    REQUIRE(words(hypic_store_begin(store, &lookup, 1, &ticket)) == "ok");
    hypic_answer answer{};
    REQUIRE(words(hypic_store_poll(store, ticket, &answer, 1)) == "ok");
    return answer;
  };
  std::uint64_t ticket = 0;
  auto const whole = look_up(ticket);
  CHECK((whole.state == HYPIC_MISS && whole.reason == HYPIC_INCOMPLETE));
  REQUIRE(words(hypic_store_release(store, ticket, nullptr, nullptr)) == "ok");
  CHECK(hypic_store_release(store, ticket, nullptr, nullptr).code == HYPIC_NOT_FOUND);

  lookup.parts = &first;
  lookup.part_count = 1;
  auto const part = look_up(ticket);
  REQUIRE(part.state == HYPIC_HIT);
  CHECK(part.bytes == block.size());
  CHECK(std::memcmp(part.block, block.data(), 64) == 0);
  int asked = 0;
  REQUIRE(words(hypic_store_release(
              store, ticket, [](void* of) { return ++*static_cast<int*>(of) > 1 ? 1 : 0; }, &asked)) == "ok");
  REQUIRE(look_up(ticket).state == HYPIC_HIT);  // a verb asks the fence
  REQUIRE(words(hypic_store_release(store, ticket, nullptr, nullptr)) == "ok");
  CHECK(asked == 2);

  auto corrupt = digests;
  corrupt[0].bytes[0] ^= 1;
  publication.digests = corrupt.data();
  CHECK(hypic_store_publish(store, &publication, 1, &outcome).code == HYPIC_CORRUPT);
  CHECK(outcome.code == HYPIC_CORRUPT);
  hypic_store_destroy(store);
  hypic_record_destroy(record);
  hypic_model_destroy(model);
}

TEST_CASE("Structs are read by their size: older ones are filled up, newer ones only where the rest is zero",
          "[adapter][c_api]") {
  std::int32_t const tokens[] = {1};
  struct {
    hypic_identity known;
    std::uint64_t later;
  } identity{};
  identity.known.tokens = tokens;
  identity.known.token_count = 1;
  identity.known.model = "model";
  hypic_key key, shorter;
  auto const outcome = [&](std::size_t size, hypic_key& to) {
    identity.known.size = size;
    return words(hypic_make_key(&identity.known, &to));
  };
  CHECK(outcome(sizeof identity.known, key) == "ok");
  CHECK(outcome(sizeof identity, shorter) == "ok");
  CHECK(std::memcmp(&key, &shorter, sizeof key) == 0);
  CHECK(outcome(offsetof(hypic_identity, tenant), shorter) == "ok");
  CHECK(std::memcmp(&key, &shorter, sizeof key) == 0);
  identity.later = 1;
  CHECK(outcome(sizeof identity, key).starts_with("unsupported: identity is"));
  CHECK(outcome(0, key).starts_with("invalid_argument: identity is 0, expected at least"));
  CHECK(words(hypic_make_key(nullptr, &key)) == "invalid_argument: identity has no meaning here");
  CHECK(words(hypic_make_key(&identity.known, nullptr)) == "invalid_argument: key has no meaning here");
}

TEST_CASE("What C gives wrong is refused by name", "[adapter][c_api]") {
  auto const refusal = [](auto change) {
    auto layer = linear_layer_of(4);
    hypic_model_info info{};
    info.size = sizeof info;
    info.layers = &layer;
    info.layer_count = 1;
    info.head_rows = 8;
    change(info, layer);
    hypic_model* model = nullptr;
    auto const outcome = words(hypic_model_create(&info, &model));
    CHECK(model == nullptr);
    return outcome;
  };
  CHECK(refusal([](auto&, auto& layer) { layer.kind = 2; }) ==
        "invalid_argument: layers.kind is 2, expected at most 1");
  CHECK(refusal([](auto&, auto& layer) { layer.family = 9; }) ==
        "unsupported: layers.family is well-formed, but refused for now");
  CHECK(refusal([](auto&, auto& layer) { layer.key_heads = 0; }) ==
        "invalid_shape: dims.key_heads is 0, expected at least 1");
  CHECK(refusal([](auto& info, auto&) { info.layer_count = -1; }) ==
        "invalid_argument: info.layers is -1, expected at least 0");
  CHECK(refusal([](auto& info, auto&) { info.layers = nullptr; }) ==
        "invalid_argument: info.layers has no meaning here");

  hypic_store* store = nullptr;
  auto table = table_over(nullptr);
  table.poll = nullptr;
  CHECK(words(hypic_table_store_create(&table, &store)) == "invalid_argument: table.poll has no meaning here");

  auto* const model = make_model(4);
  hypic_span span{};
  span.size = sizeof span;
  span.kind = 5;
  hypic_request request{};
  request.size = sizeof request;
  request.spans = &span;
  request.span_count = 1;
  hypic_batch* batch = nullptr;
  CHECK(words(hypic_batch_create(model, &request, 1, &batch)) ==
        "invalid_argument: requests.spans.kind is 5, expected at most 1");
  hypic_record* record = nullptr;
  CHECK(words(hypic_record_create(model, -1, &record)).starts_with("invalid_shape"));
  hypic_model_destroy(model);
}

namespace {

// The C API as a cache_store, so that the contract kit reaches the verbs of C.
class store_through_c final : public cache_store {
 public:
  store_through_c() : store_(make_table_store()) {}
  store_through_c(store_through_c const&) = delete;
  store_through_c& operator=(store_through_c const&) = delete;
  ~store_through_c() override { hypic_store_destroy(store_); }

  result<ticket> begin(std::span<lookup_request const> requests) noexcept override {
    std::vector<hypic_lookup> lookups;
    std::list<std::vector<hypic_part>> parts;
    for (auto const& r : requests) {
      auto& theirs = parts.emplace_back(in_c(r.parts));
      lookups.push_back({sizeof(hypic_lookup), in_c(r.key.bytes), r.tokens.data(), size(r.tokens), record_of(r.layout),
                         theirs.data(), size(theirs)});
    }
    std::uint64_t which = 0;
    auto const outcome = hypic_store_begin(store_, lookups.data(), size(lookups), &which);
    if (outcome.code != HYPIC_OK) return to_cpp(outcome);
    return static_cast<ticket>(which);
  }
  status poll(ticket which, std::span<lookup_result> results) noexcept override {
    std::vector<hypic_answer> answers(results.size());
    auto const outcome = hypic_store_poll(store_, static_cast<std::uint64_t>(which), answers.data(), size(answers));
    for (std::size_t i = 0; i < answers.size(); ++i)
      results[i] = {static_cast<lookup_state>(answers[i].state),
                    static_cast<miss_reason>(answers[i].reason),
                    {static_cast<std::byte const*>(answers[i].block), answers[i].bytes}};
    return to_cpp(outcome);
  }
  status publish(std::span<publish_request const> requests, std::span<status> outcomes) noexcept override {
    if (outcomes.size() != requests.size()) return {status::invalid_shape, "outcomes"};  // C has one count for both
    std::vector<hypic_publication> publications;
    std::list<std::vector<hypic_part>> parts;
    std::list<std::vector<hypic_digest>> digests;
    for (auto const& r : requests) {
      auto& theirs = parts.emplace_back(in_c(r.parts));
      auto& named = digests.emplace_back();
      for (auto const& one : r.digests) named.push_back(in_c(one));
      publications.push_back({sizeof(hypic_publication), in_c(r.key.bytes), r.tokens.data(), size(r.tokens),
                              record_of(r.layout), r.block.data(), r.block.size(), named.data(), size(named),
                              theirs.data(), size(theirs), r.value});
    }
    std::vector<hypic_status> told(requests.size());
    auto const outcome = hypic_store_publish(store_, publications.data(), size(publications), told.data());
    std::ranges::transform(told, outcomes.begin(), to_cpp);
    return to_cpp(outcome);
  }
  status release(ticket which, fence after) noexcept override {
    if (after.reached == nullptr)
      return to_cpp(hypic_store_release(store_, static_cast<std::uint64_t>(which), nullptr, nullptr));
    std::lock_guard const lock(mutex_);
    auto& kept = fences_.emplace_back(after);
    return to_cpp(hypic_store_release(
        store_, static_cast<std::uint64_t>(which),
        [](void* of) {
          auto const& one = *static_cast<fence*>(of);
          return one.reached(one.context) ? 1 : 0;
        },
        &kept));
  }

 private:
  template <class Container>
  static std::int64_t size(Container const& of) {
    return static_cast<std::int64_t>(of.size());
  }
  static hypic_key in_c(digest const& from) {
    hypic_key key;
    std::memcpy(key.bytes, from.data(), sizeof key.bytes);
    return key;
  }
  static std::vector<hypic_part> in_c(std::span<part_id const> from) {
    std::vector<hypic_part> parts;
    for (auto const& id : from) parts.push_back({id.layer, static_cast<std::int32_t>(id.kind), id.head});
    return parts;
  }
  // A record is a layout and nothing else, which the kit's models have from C++.
  hypic_record* record_of(record_layout const* layout) {
    if (layout == nullptr) return nullptr;
    static_assert(sizeof(record_layout) > 0);
    return reinterpret_cast<hypic_record*>(const_cast<record_layout*>(layout));
  }

  hypic_store* store_;
  std::mutex mutex_;
  std::list<fence> fences_;
};

}  // namespace

TEST_CASE("A store of C functions keeps the contract", "[adapter][c_api]") {
  auto const reports = check_store_contract(
      {.make = [](void*) -> std::unique_ptr<cache_store> { return std::make_unique<store_through_c>(); },
       .capacity_bytes = capacity,
       .damage = [](void*, cache_store& store, lookup_request const& of) { return test::damage_in_place(store, of); }});
  REQUIRE(reports);
  for (auto const& report : *reports) {
    CAPTURE(report.verb, report.clause, report.found);
    CHECK(report.outcome == clause_outcome::kept);
  }
}
