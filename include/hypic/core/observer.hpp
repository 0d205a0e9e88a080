// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hypic/core/export.hpp"

namespace hypic::inline v0 {

enum class log_level : std::uint8_t { info, warning };

/// What a host may watch. A call names itself on the thread that made it, never on its workers; calls on several threads
/// are told at once, so an observer that they share is safe to call from any.
class HYPIC_API observer {
 public:
  virtual ~observer() = default;

  /// `name` is a string literal such as "store.miss.absent"; `increment` is at least 1.
  virtual void count(char const* name, std::int64_t increment) noexcept = 0;

  /// The work between a begin and its end, on one thread; ranges nest. `name` is a string literal such as
  /// "segment.prefill".
  virtual void begin_range(char const* name) noexcept { static_cast<void>(name); }
  virtual void end_range() noexcept {}

  /// A line for people. `text` is gone after the call.
  virtual void log(log_level level, char const* text) noexcept {
    static_cast<void>(level);
    static_cast<void>(text);
  }
};

/// A range that ends with its block. Null watches nothing.
class watched_range {
 public:
  watched_range(observer* watch, char const* name) noexcept : watch_(watch) {
    if (watch_ != nullptr) watch_->begin_range(name);
  }
  watched_range(watched_range const&) = delete;
  watched_range& operator=(watched_range const&) = delete;
  ~watched_range() {
    if (watch_ != nullptr) watch_->end_range();
  }

 private:
  observer* watch_;
};

}  // namespace hypic::inline v0
