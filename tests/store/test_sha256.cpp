// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "hypic/store/sha256.hpp"

using namespace hypic;

namespace {

std::span<std::byte const> bytes(std::string_view text) { return std::as_bytes(std::span{text}); }

std::string hex_of(std::initializer_list<std::span<std::byte const>> pieces) {
  auto const value = sha256(pieces);
  REQUIRE(value);
  return to_hex(*value);
}

constexpr std::string_view abc_digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

}  // namespace

TEST_CASE("SHA-256 gives the digests of FIPS 180-4's examples", "[store][sha256]") {
  CHECK(hex_of({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex_of({bytes("abc")}) == abc_digest);
  CHECK(hex_of({bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")}) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex_of({bytes("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                      "mnopqrstnopqrstu")}) == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(hex_of({bytes(std::string(1'000'000, 'a'))}) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("the digest of pieces is that of their bytes, however they are cut", "[store][sha256]") {
  CHECK(hex_of({bytes(""), bytes("a"), {}, bytes("bc"), bytes("")}) == abc_digest);
}

TEST_CASE("digests made by many threads at once are right", "[store][sha256]") {
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (auto& count : wrong) {
    threads.emplace_back([&count] {
      for (int i = 0; i < 200; ++i) {
        auto const value = sha256({bytes("abc")});
        count += !value || to_hex(*value) != abc_digest ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(8, 0));
}
