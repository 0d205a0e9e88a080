// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/exec.hpp"
#include "hypic/core/status.hpp"

namespace hypic::inline v0 {

/// Whether a call was lent what it needs.
constexpr status expect_exec(host_exec const& ex, std::int64_t workspace_bytes) noexcept {
  if (ex.threads < 1) return {status::invalid_argument, "ex.threads", ex.threads, status::relation::at_least, 1};
  auto const lent = static_cast<std::int64_t>(ex.workspace.size());
  if (lent < workspace_bytes) {
    return {status::workspace_too_small, "ex.workspace", lent, status::relation::at_least, workspace_bytes};
  }
  return status::ok;
}

/// Tells the host's observer, where there is one, of a call: counts it, and is its range.
[[nodiscard]] inline watched_range tell(host_exec const& ex, char const* name) noexcept {
  if (ex.watch != nullptr) ex.watch->count(name, 1);
  return {ex.watch, name};
}

}  // namespace hypic::inline v0
