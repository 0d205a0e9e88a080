// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "hypic/core/observer.hpp"

namespace hypic::inline v0 {

/// Keeps what it hears, with the time and the thread, for chrome://tracing or Perfetto: ranges as complete events,
/// counters as their running totals, log lines as instants. Safe to call from any thread.
/// Beyond `most_events`, and where memory is short, events are dropped and counted.
class HYPIC_API trace final : public observer {
 public:
  explicit trace(std::int64_t most_events = std::int64_t{1} << 20);
  trace(trace&&) = delete;
  ~trace() override;

  void count(char const* name, std::int64_t increment) noexcept override;
  void begin_range(char const* name) noexcept override;
  void end_range() noexcept override;
  void log(log_level level, char const* text) noexcept override;

  std::int64_t dropped() const noexcept;

  /// The events so far as a JSON object of Chrome's trace event format; times in microseconds since construction.
  /// Ranges that are still open are left out. Throws std::bad_alloc alone.
  /// Source: "Trace Event Format", Google, 2016.
  std::string json() const;

 private:
  struct implementation;
  std::unique_ptr<implementation> implementation_;
};

}  // namespace hypic::inline v0
