// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "hypic/core/dtype.hpp"
#include "hypic/store/sha256.hpp"

namespace hypic::inline v0 {

/// All that would make a record's bytes wrong for a reader.
struct segment_identity {
  std::span<std::int32_t const> tokens;
  std::span<std::byte const> content{};  ///< digest of the content that non-text tokens stand for; empty for text
  std::string_view model;                ///< model_fingerprint
  std::string_view tenant{};             ///< salt: tenants never share records
  std::string_view adapter{};
  std::uint64_t epoch = 0;  ///< raised when weights change in place: older records become misses
  double form_bound = 0.0;  ///< error bound of the stored forms; 0: exact fp32
  dtype kv = dtype::f32;
};

/// The name of a record: the digest of an identity.
struct record_key {
  digest bytes{};
  friend constexpr auto operator<=>(record_key const&, record_key const&) = default;
};

/// Hash for unordered containers: a digest is uniform, so its first bytes serve.
struct record_key_hash {
  std::size_t operator()(record_key const& key) const noexcept {
    std::size_t value = 0;
    std::memcpy(&value, key.bytes.data(), sizeof value);
    return value;
  }
};

/// The key of an identity: the same in every process and on every machine. Each field is written with its length, so
/// no two identities share an encoding. Errors: invalid_argument (`model` is empty, `form_bound` is not a finite
/// number of at least 0), backend_failure, out_of_memory.
HYPIC_API result<record_key> make_record_key(segment_identity const& identity);

}  // namespace hypic::inline v0
