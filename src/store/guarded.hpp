// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "hypic/core/status.hpp"

namespace hypic::inline v0 {

/// The outcome of `fn`, which throws only where an allocation fails; that becomes `failure`.
template <class Fn>
auto guarded(Fn&& fn, status failure = status::out_of_memory) noexcept -> decltype(fn()) {
  try {
    return fn();
  } catch (std::exception const&) {
    return failure;
  }
}

}  // namespace hypic::inline v0
