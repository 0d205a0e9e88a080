// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>

#include "hypic/core/export.hpp"

// The one place where the version is written; the build reads it from here.
#define HYPIC_VERSION_MAJOR 0
#define HYPIC_VERSION_MINOR 1
#define HYPIC_VERSION_PATCH 0

namespace hypic::inline v0 {

struct version {
  int major;
  int minor;
  int patch;

  friend constexpr auto operator<=>(version const&, version const&) = default;
};

/// The version of the headers that this translation unit was compiled with.
inline constexpr version header_version{HYPIC_VERSION_MAJOR, HYPIC_VERSION_MINOR, HYPIC_VERSION_PATCH};

/// The version of the library that the program runs with. A shared one may differ from the headers in its patch number.
HYPIC_API version library_version() noexcept;

}  // namespace hypic::inline v0
