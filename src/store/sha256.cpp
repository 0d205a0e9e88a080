// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/sha256.hpp"

#include <openssl/evp.h>

#include <memory>
#include <string>

namespace hypic::inline v0 {
namespace {

struct free_context {
  void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
};

}  // namespace

result<digest> sha256(std::initializer_list<std::span<std::byte const>> pieces) noexcept {
  // A context a call: calls share nothing, so any number of threads may make them.
  std::unique_ptr<EVP_MD_CTX, free_context> const context{EVP_MD_CTX_new()};
  bool done = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (auto const piece : pieces) done = done && EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1;

  digest value{};
  done = done && EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(value.data()), nullptr) == 1;
  if (!done) return status{status::backend_failure, "sha256"};
  return value;
}

std::string to_hex(digest const& value) {
  constexpr char const* digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * value.size());
  for (auto const byte : value) {
    text += digits[std::to_integer<int>(byte >> 4)];
    text += digits[std::to_integer<int>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace hypic::inline v0
