// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "hypic/store/key.hpp"

using namespace hypic;

namespace {

std::span<std::byte const> bytes(std::string_view text) { return std::as_bytes(std::span{text}); }

record_key key_of(segment_identity const& identity) {
  auto const key = make_record_key(identity);
  REQUIRE(key);
  return *key;
}

std::vector<std::int32_t> const text{72, -1, 2147483647};

segment_identity const full{.tokens = text,
                            .content = bytes(std::string_view{"\x00\x01\x02\x03", 4}),
                            .model = "model",
                            .tenant = "tenant",
                            .adapter = "adapter",
                            .epoch = 0xfffffffffffffffe,
                            .form_bound = 0.25,
                            .kv = dtype::bf16};

template <class Change>
segment_identity changed(Change&& change) {
  auto identity = full;
  change(identity);
  return identity;
}

}  // namespace

// Golden: the right values come from this program, which shares no code with the library. A key that changes from process
// to process or from version to version would orphan what is stored, so these may only change with the layout revision.
//
//   import hashlib, struct
//   def field(b): return struct.pack("<Q", len(b)) + b
//   def number(n): return field(struct.pack("<Q", n))
//   def key(tokens, content=b"", model=b"m", tenant=b"", adapter=b"", epoch=0, bound=0.0, kv=0):
//       return hashlib.sha256(
//           field(b"hypic record") + number(1) + field(struct.pack(f"<{len(tokens)}i", *tokens)) + field(content)
//           + field(model) + field(tenant) + field(adapter) + number(epoch) + field(struct.pack("<d", bound))
//           + number(kv)).hexdigest()
//   key([]); key([1, 2, 3])
//   key([72, -1, 2147483647], bytes(range(4)), b"model", b"tenant", b"adapter", 2**64 - 2, 0.25, 2)
TEST_CASE("keys are the golden ones, in every process", "[store][key][case-28]") {
  std::vector<std::int32_t> const three{1, 2, 3};
  CHECK(to_hex(key_of({.tokens = {}, .model = "m"}).bytes) ==
        "ab082dd1acb8aad4eb77857dcb3abdb3b9bfa20c726c7f9a79ccc9aaa2461c4f");
  CHECK(to_hex(key_of({.tokens = three, .model = "m"}).bytes) ==
        "3dc0a4745e55d72ac63e311b73b6d0f9900301e5b802a461a4d1286ced9305d9");
  CHECK(to_hex(key_of(full).bytes) == "99fa620a43b3b9dcc99f285655e515ace575af78535ed48ad39bc77d4a82a90f");
}

TEST_CASE("a change of any field gives another key", "[store][key][case-28]") {
  std::vector<std::int32_t> const other_token{72, -1, 2147483646};
  std::vector<std::int32_t> const other_order{-1, 72, 2147483647};
  std::vector<std::int32_t> const shorter{72, -1};
  std::vector<std::int32_t> const longer{72, -1, 2147483647, 0};
  using id = segment_identity;
  std::vector<segment_identity> const identities{
      full,
      changed([&](id& i) { i.tokens = other_token; }),
      changed([&](id& i) { i.tokens = other_order; }),
      changed([&](id& i) { i.tokens = shorter; }),
      changed([&](id& i) { i.tokens = longer; }),
      changed([&](id& i) { i.tokens = {}; }),
      changed([](id& i) { i.content = {}; }),
      changed([](id& i) {
        i.content = bytes(std::string_view{"\x00\x01\x02\x04", 4});
      }),
      changed([](id& i) { i.model = "Model"; }),
      changed([](id& i) { i.tenant = {}; }),
      changed([](id& i) { i.tenant = "tenant2"; }),
      changed([](id& i) { i.adapter = {}; }),
      changed([](id& i) { i.adapter = "adapter2"; }),
      changed([](id& i) { i.epoch = 0; }),
      changed([](id& i) { i.epoch = 0xffffffffffffffff; }),
      changed([](id& i) { i.form_bound = 0.0; }),
      changed([](id& i) { i.form_bound = std::nextafter(0.25, 1.0); }),
      changed([](id& i) { i.kv = dtype::f32; }),
      changed([](id& i) { i.kv = dtype::f16; }),
  };
  std::set<record_key> keys;
  for (auto const& identity : identities) keys.insert(key_of(identity));
  CHECK(keys.size() == identities.size());
}

TEST_CASE("fields whose bytes are equal once joined give other keys", "[store][key][case-28]") {
  using id = segment_identity;
  // "modeltenantadapter" cut elsewhere, and the same bytes as tokens, as content or as a salt.
  std::vector<std::int32_t> tokens(1);
  std::memcpy(tokens.data(), "abcd", 4);
  std::vector<segment_identity> const identities{
      changed([](id& i) { i.model = "model", i.tenant = "tenant", i.adapter = "adapter"; }),
      changed([](id& i) { i.model = "modelt", i.tenant = "enant", i.adapter = "adapter"; }),
      changed([](id& i) { i.model = "model", i.tenant = "tenantadapter", i.adapter = ""; }),
      changed([](id& i) { i.model = "model", i.tenant = "", i.adapter = "tenantadapter"; }),
      changed([](id& i) { i.model = "modeltenantadapter", i.tenant = "", i.adapter = ""; }),
      changed([&](id& i) { i.tokens = tokens, i.content = {}, i.tenant = ""; }),
      changed([&](id& i) { i.tokens = {}, i.content = bytes("abcd"), i.tenant = ""; }),
      changed([&](id& i) { i.tokens = {}, i.content = {}, i.tenant = "abcd"; }),
      // A salt that spells the encoding of the field after it.
      changed([](id& i) {
        i.tenant = std::string_view{"t\1\0\0\0\0\0\0\0a", 10}, i.adapter = "";
      }),
      changed([](id& i) { i.tenant = "t", i.adapter = "a"; }),
  };
  std::set<record_key> keys;
  for (auto const& identity : identities) keys.insert(key_of(identity));
  CHECK(keys.size() == identities.size());
}

TEST_CASE("equal identities have equal keys, wherever their fields lie", "[store][key]") {
  auto const tokens = text;
  std::string const model = "model";
  CHECK(key_of(changed([&](segment_identity& i) { i.tokens = tokens, i.model = model; })) == key_of(full));
  CHECK(key_of(changed([](segment_identity& i) { i.form_bound = -0.0; })) ==
        key_of(changed([](segment_identity& i) { i.form_bound = 0.0; })));
}

TEST_CASE("an identity without a model, or with a bound that is none, has no key", "[store][key]") {
  using id = segment_identity;
  CHECK(make_record_key(changed([](id& i) { i.model = {}; })).error() == status::invalid_argument);
  for (auto const bound : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(make_record_key(changed([&](id& i) { i.form_bound = bound; })).error() == status::invalid_argument);
  }
}

TEST_CASE("keys spread over an unordered container", "[store][key]") {
  std::set<std::size_t> hashes;
  for (std::int32_t token = 0; token < 1000; ++token) {
    hashes.insert(record_key_hash{}(key_of({.tokens = std::span{&token, 1}, .model = "m"})));
  }
  CHECK(hashes.size() == 1000);
}
