// SPDX-License-Identifier: Apache-2.0
#include "hypic/adapter/trace.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace hypic::inline v0 {
namespace {

using clock = std::chrono::steady_clock;

enum class event_kind : std::uint8_t { range, counter, line };

struct event {
  event_kind kind{};
  std::string name;
  clock::duration start{};
  clock::duration length{};  ///< of a range
  std::int64_t thread = 0;
  std::int64_t total = 0;  ///< of a counter
};

struct open_range {
  char const* name;
  clock::duration start;
};

void append_quoted(std::string& to, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  to += '"';
  for (char const c : text) {
    auto const code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      to += '\\';
      to += c;
    } else if (code < 0x20) {
      to += "\\u00";
      to += digits[code / 16];
      to += digits[code % 16];
    } else {
      to += c;
    }
  }
  to += '"';
}

/// Microseconds with three decimals: nanoseconds, without a floating-point number on the way.
std::string microseconds(clock::duration time) {
  auto const nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  auto const fraction = std::to_string(1000 + nanoseconds % 1000);
  return std::to_string(nanoseconds / 1000) + '.' + fraction.substr(1);
}

void append(std::string& to, event const& one) {
  to += "{\"pid\":1,\"tid\":" + std::to_string(one.thread) + ",\"ts\":" + microseconds(one.start) + ",\"name\":";
  append_quoted(to, one.name);
  switch (one.kind) {
    case event_kind::range: to += ",\"ph\":\"X\",\"dur\":" + microseconds(one.length); break;
    case event_kind::counter: to += ",\"ph\":\"C\",\"args\":{\"total\":" + std::to_string(one.total) + '}'; break;
    case event_kind::line: to += ",\"ph\":\"i\",\"s\":\"t\""; break;
  }
  to += '}';
}

}  // namespace

struct trace::implementation {
  clock::time_point const start = clock::now();
  std::size_t most;
  mutable std::mutex mutex{};
  std::vector<event> events{};
  std::map<std::thread::id, std::int64_t> threads{};
  std::map<std::thread::id, std::vector<open_range>> open{};
  std::map<std::string, std::int64_t, std::less<>> totals{};
  std::int64_t dropped = 0;

  std::int64_t this_thread() {
    auto const next = static_cast<std::int64_t>(threads.size()) + 1;
    return threads.try_emplace(std::this_thread::get_id(), next).first->second;
  }

  /// Runs fn(now) under the lock; an event that finds no memory is dropped.
  template <class Fn>
  void record(Fn fn) noexcept {
    auto const now = clock::now() - start;
    std::lock_guard const lock(mutex);
    try {
      fn(now);
    } catch (std::exception const&) {
      ++dropped;
    }
  }
  void add(event one) {
    if (events.size() >= most) {
      ++dropped;
    } else {
      events.push_back(std::move(one));
    }
  }
};

trace::trace(std::int64_t most_events)
    : implementation_(new implementation{.most = static_cast<std::size_t>(std::max<std::int64_t>(most_events, 0))}) {}
trace::~trace() = default;

void trace::count(char const* name, std::int64_t increment) noexcept {
  auto& in = *implementation_;
  in.record([&](clock::duration now) {
    auto& total = in.totals[name];
    total += increment;
    in.add({event_kind::counter, name, now, {}, in.this_thread(), total});
  });
}

void trace::begin_range(char const* name) noexcept {
  auto& in = *implementation_;
  in.record([&](clock::duration now) { in.open[std::this_thread::get_id()].push_back({name, now}); });
}

void trace::end_range() noexcept {
  auto& in = *implementation_;
  in.record([&](clock::duration now) {
    auto& ranges = in.open[std::this_thread::get_id()];
    if (ranges.empty()) return;  // its begin was dropped
    auto const range = ranges.back();
    ranges.pop_back();
    in.add({event_kind::range, range.name, range.start, now - range.start, in.this_thread()});
  });
}

void trace::log(log_level level, char const* text) noexcept {
  auto& in = *implementation_;
  in.record([&](clock::duration now) {
    in.add({event_kind::line,
            (level == log_level::warning ? "warning: " : "") + std::string(text),
            now,
            {},
            in.this_thread()});
  });
}

std::int64_t trace::dropped() const noexcept {
  std::lock_guard const lock(implementation_->mutex);
  return implementation_->dropped;
}

std::string trace::json() const {
  std::lock_guard const lock(implementation_->mutex);
  std::string text = "{\"traceEvents\":[";
  for (auto const& one : implementation_->events) {
    if (text.back() == '}') text += ",\n";
    append(text, one);
  }
  return text + "]}\n";
}

}  // namespace hypic::inline v0
