// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/export.hpp"

namespace hypic::inline v0 {

/// What a host may watch: counters by name. Called on the thread that made the call, never from workers.
class HYPIC_API observer {
 public:
  virtual ~observer() = default;
  /// `name` is a string literal such as "store.miss.absent"; `increment` is at least 1.
  virtual void count(char const* name, std::int64_t increment) noexcept = 0;
};

}  // namespace hypic::inline v0
