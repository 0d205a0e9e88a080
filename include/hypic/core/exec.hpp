// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "hypic/core/observer.hpp"

namespace hypic::inline v0 {

/// What a host lends to one call of the host back end. Its type selects the back end.
/// A call returns when its work is done. It allocates nothing: scratch comes from `workspace`, whose size
/// `plan.workspace_bytes(threads)` states and which may hold anything, at any alignment.
struct host_exec {
  std::span<std::byte> workspace{};
  int threads = 1;            ///< workers of this call, at least 1 (above 1024: 1024); the same bits for any number
  observer* watch = nullptr;  ///< told of each call; may be null
};

}  // namespace hypic::inline v0
