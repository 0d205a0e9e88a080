// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/core/calls.hpp"
#include "hypic/core/status.hpp"

/// Checks that calls of the CUDA back end share.
namespace hypic::inline v0 {

constexpr status expect_least(char const* argument, std::int64_t found, std::int64_t least) noexcept {
  if (found >= least) return status::ok;
  return {status::invalid_shape, argument, found, status::relation::at_least, least};
}

constexpr status expect_most(char const* argument, std::int64_t found, std::int64_t most) noexcept {
  if (found <= most) return status::ok;
  return {status::unsupported, argument, found, status::relation::at_most, most};
}

/// A grid of `each` blocks for each of `found` entries, `each` at least 1: what one launch can hold.
constexpr status expect_grid(char const* argument, std::int64_t found, std::int64_t each) noexcept {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
  return expect_most(argument, found, most / each);
}

/// Whether the device has the path that a call asks for, whose one kernel serves on either.
inline status expect_path(device_exec const& ex) noexcept {
  auto const limits = current_device();
  return limits ? takes_hopper(ex, *limits, true).error() : limits.error();
}

}  // namespace hypic::inline v0
