// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "hypic/core/status.hpp"

namespace hypic::inline v0 {

/// A SHA-256 digest (FIPS 180-4).
using digest = std::array<std::byte, 32>;

/// The digest of the pieces' bytes, one after another. Errors: backend_failure (the cryptographic library failed).
HYPIC_API result<digest> sha256(std::initializer_list<std::span<std::byte const>> pieces) noexcept;

/// 64 lower-case hexadecimal digits.
HYPIC_API std::string to_hex(digest const& value);

}  // namespace hypic::inline v0
