// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "adapter/c_values.hpp"
#include "hypic.h"
#include "hypic/core/version.hpp"
#include "hypic/store/contract_kit.hpp"

using namespace hypic;
using namespace hypic::test;

namespace {

constexpr std::int64_t capacity = 512 * 1024;

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

// A clause of the kit as C tells of it, in words that stay.
struct told_clause {
  std::string verb, clause, found;
  std::int32_t outcome;
};

struct told_report {
  hypic_status outcome{};
  std::vector<told_clause> clauses;

  std::vector<std::string> of(std::int32_t wanted) const {
    std::vector<std::string> names;
    for (auto const& one : clauses)
      if (one.outcome == wanted) names.push_back(one.verb + ": " + one.clause);
    return names;
  }
};

told_report check_contract(hypic_store_under_test subject) {
  told_report told;
  subject.size = sizeof subject;
  told.outcome = hypic_check_store_contract(
      &subject,
      [](void* to, hypic_clause_report const* report) {
        static_cast<told_report*>(to)->clauses.push_back(
            {report->verb, report->clause, report->found, report->outcome});
      },
      &told);
  return told;
}

// A look-up of one record in C, kept until it goes.
struct c_asked {
  hypic_store* store;
  std::uint64_t ticket = 0;
  hypic_answer answer{};

  c_asked(hypic_store* of, hypic_lookup const* lookup) : store(of) {
    REQUIRE(words(hypic_store_begin(store, lookup, 1, &ticket)) == "ok");
    REQUIRE(words(hypic_store_poll(store, ticket, &answer, 1)) == "ok");
  }
  c_asked(c_asked const&) = delete;
  c_asked& operator=(c_asked const&) = delete;
  ~c_asked() { hypic_store_release(store, ticket, nullptr, nullptr); }
};

// What a lease shows is constant, but not the memory itself: a test that plays faulty memory may cast.
int damage_through_c(void*, hypic_store* store, hypic_lookup const* of) {
  c_asked const reader(store, of);
  if (reader.answer.state != HYPIC_HIT) return 0;
  std::int64_t offset = 0, bytes = 0;
  hypic_record_part_place(of->record, hypic_record_find(of->record, of->parts[0]), &offset, &bytes);
  static_cast<char*>(const_cast<void*>(reader.answer.block))[offset + bytes / 2] ^= 4;
  return 1;
}

hypic_store_under_test bare_subject(hypic_store* (*make)(void*)) {
  hypic_store_under_test subject{};
  subject.make = make;
  return subject;
}

hypic_store_under_test subject_of(hypic_store* (*make)(void*)) {
  auto subject = bare_subject(make);
  subject.capacity_bytes = capacity;
  subject.damage = damage_through_c;
  return subject;
}

std::vector<std::string> names_of_clauses() {
  auto const reports = check_store_contract({.make = [](void*) { return std::unique_ptr<cache_store>(); }});
  REQUIRE(reports);
  std::vector<std::string> names;
  for (auto const& report : *reports) names.push_back(std::string(report.verb) + ": " + report.clause);
  return names;
}

}  // namespace

TEST_CASE("A store of C functions keeps the contract, clause by clause", "[adapter][c_api]") {
  auto const told = check_contract(subject_of([](void*) { return make_table_store(); }));
  CHECK(words(told.outcome) == "ok");
  for (auto const& one : told.clauses) {
    CAPTURE(one.verb, one.clause, one.found);
    CHECK(one.outcome == HYPIC_KEPT);
  }
  CHECK(told.of(HYPIC_KEPT) == names_of_clauses());
}

TEST_CASE("The kit finds in C the clause that a store of C functions breaks", "[adapter][c_api]") {
  auto const told = check_contract(subject_of([](void*) {
    hypic_store *inner = nullptr, *store = nullptr;
    REQUIRE(words(hypic_memory_store_create(capacity, &inner)) == "ok");
    auto table = table_over(inner);
    table.release = [](void* of, std::uint64_t ticket, hypic_reached reached, void* context) {
      auto const outcome = hypic_store_release(static_cast<hypic_store*>(of), ticket, reached, context);
      return outcome.code == HYPIC_NOT_FOUND ? hypic_status{} : outcome;
    };
    REQUIRE(words(hypic_table_store_create(&table, &store)) == "ok");
    return store;
  }));
  CHECK(words(told.outcome) == "ok");
  REQUIRE(told.of(HYPIC_BROKEN) == std::vector<std::string>{"release: a ticket is released once"});
  for (auto const& one : told.clauses) CHECK(one.found.empty() == (one.outcome == HYPIC_KEPT));
}

TEST_CASE("A store that gives one ticket twice breaks its clause, and not the memory of its look-ups",
          "[adapter][c_api]") {
  auto const told = check_contract(subject_of([](void*) {
    hypic_store *inner = nullptr, *store = nullptr;
    REQUIRE(words(hypic_memory_store_create(capacity, &inner)) == "ok");
    auto table = table_over(inner);
    table.begin = [](void* of, hypic_lookup const* lookups, std::int64_t count, std::uint64_t* ticket) {
      auto const outcome = hypic_store_begin(static_cast<hypic_store*>(of), lookups, count, ticket);
      *ticket = 1;
      return outcome;
    };
    REQUIRE(words(hypic_table_store_create(&table, &store)) == "ok");
    return store;
  }));
  CHECK(words(told.outcome) == "ok");
  auto const broken = told.of(HYPIC_BROKEN);
  CHECK(std::ranges::count(broken, "begin: each look-up has a ticket of its own") == 1);
}

TEST_CASE("What a host in C leaves out is skipped with a reason, and a store that is not made breaks",
          "[adapter][c_api]") {
  auto const bare = check_contract(bare_subject([](void*) { return make_table_store(); }));
  CHECK(words(bare.outcome) == "ok");
  CHECK(bare.of(HYPIC_BROKEN).empty());
  std::vector<std::string> reasons;
  for (auto const& one : bare.clauses)
    if (one.outcome == HYPIC_SKIPPED) reasons.push_back(one.found);
  CHECK(std::ranges::count(reasons, "damage is null") == 2);
  CHECK(std::ranges::count(reasons, "capacity_bytes is not known") == std::ssize(reasons) - 2);
  CHECK(reasons.size() > 2);

  auto const none = check_contract(bare_subject([](void*) -> hypic_store* { return nullptr; }));
  CHECK(none.of(HYPIC_KEPT).empty());
  CHECK(none.of(HYPIC_SKIPPED) == bare.of(HYPIC_SKIPPED));
}

TEST_CASE("What the kit cannot work with it refuses, and tells of no clause", "[adapter][c_api]") {
  auto const refusal = [](auto change) {
    auto subject = subject_of([](void*) { return make_table_store(); });
    change(subject);
    auto const told = check_contract(subject);
    CHECK(told.clauses.empty());
    return words(told.outcome);
  };
  CHECK(refusal([](auto& subject) { subject.make = nullptr; }) == "invalid_argument: subject.make has no meaning here");
  CHECK(refusal([](auto& subject) { subject.threads = 1; }) ==
        "invalid_argument: subject.threads is 1, expected at least 2");
  CHECK(refusal([](auto& subject) { subject.capacity_bytes = 1000; }) ==
        "invalid_argument: subject.capacity_bytes is 1000, expected at least 262144");
  auto subject = subject_of([](void*) { return make_table_store(); });
  CHECK(words(hypic_check_store_contract(
            nullptr, [](void*, hypic_clause_report const*) {}, nullptr)) ==
        "invalid_argument: subject has no meaning here");
  subject.size = sizeof subject;
  CHECK(words(hypic_check_store_contract(&subject, nullptr, nullptr)) == "invalid_argument: tell has no meaning here");
}

TEST_CASE("A store in C can keep, compare and verify records", "[adapter][c_api]") {
  auto* const model = make_model(4);
  auto* const other_model = make_model(6);
  hypic_record *record = nullptr, *copy = nullptr, *other = nullptr;
  REQUIRE(words(hypic_record_create(model, 20, &record)) == "ok");
  REQUIRE(words(hypic_record_create(other_model, 20, &other)) == "ok");
  REQUIRE(words(hypic_record_copy(record, &copy)) == "ok");
  CHECK(words(hypic_record_copy(nullptr, &copy)) == "invalid_argument: record has no meaning here");
  CHECK(hypic_record_equal(record, copy) == 1);
  CHECK(hypic_record_equal(record, other) == 0);
  hypic_record_destroy(record);  // the copy stands by itself
  CHECK(hypic_record_tokens(copy) == 20);

  auto const parts = hypic_record_part_count(copy);
  std::vector<char> block(static_cast<std::size_t>(hypic_record_bytes(copy)), 3);
  std::vector<hypic_digest> digests(static_cast<std::size_t>(parts));
  REQUIRE(words(hypic_record_digests(copy, block.data(), digests.data())) == "ok");
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < parts; ++i) {
    std::int64_t offset = -1, bytes = -1;
    hypic_record_part_place(copy, i, &offset, &bytes);
    CHECK((offset >= end && bytes > 0 && offset + bytes <= hypic_record_bytes(copy)));
    end = offset + bytes;
    CHECK(hypic_record_find(copy, hypic_record_part(copy, i)) == i);

    CHECK(words(hypic_record_verify(copy, block.data(), digests.data(), &i, 1)) == "ok");
    for (auto const at : {offset, end - 1}) {  // each part is where it is said to be
      block[static_cast<std::size_t>(at)] ^= 1;
      CHECK(hypic_record_verify(copy, block.data(), digests.data(), &i, 1).code == HYPIC_CORRUPT);
      auto const all = hypic_record_verify(copy, block.data(), digests.data(), nullptr, 0);
      CHECK((all.code == HYPIC_CORRUPT && all.found == i));
      CHECK(words(hypic_record_verify(copy, block.data(), digests.data(), &i, 0)) == "ok");
      block[static_cast<std::size_t>(at)] ^= 1;
    }
  }
  CHECK(words(hypic_record_verify(copy, block.data(), digests.data(), nullptr, 0)) == "ok");
  CHECK(hypic_record_verify(copy, block.data(), digests.data(), &parts, 1).code == HYPIC_OUT_OF_RANGE);
  CHECK(hypic_record_verify(copy, block.data(), digests.data(), nullptr, -1).code == HYPIC_INVALID_ARGUMENT);
  CHECK(hypic_record_find(copy, {0, 9, 0}) == -1);
  CHECK(hypic_record_find(copy, {1, HYPIC_TAIL, 0}) == -1);
  hypic_record_destroy(copy);
  hypic_record_destroy(other);
  hypic_model_destroy(model);
  hypic_model_destroy(other_model);
}

TEST_CASE("The context of a store of C functions is found again from its handle", "[adapter][c_api]") {
  hypic_store *inner = nullptr, *store = nullptr;
  REQUIRE(words(hypic_memory_store_create(capacity, &inner)) == "ok");
  auto const table = table_over(inner);
  REQUIRE(words(hypic_table_store_create(&table, &store)) == "ok");
  CHECK(hypic_store_context(store) == inner);
  CHECK(hypic_store_context(inner) == nullptr);
  hypic_store_destroy(store);
}
