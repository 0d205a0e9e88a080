// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hypic/core/observer.hpp"

namespace hypic::inline v0 {

/// Shows ranges in a profiler that reads NVTX. It is given NVTX's two functions, so that hypic includes none of it:
///   hypic::nvtx_observer watch{nvtxRangePushA, nvtxRangePop};
/// What it hears goes on to `next`, where there is one.
class nvtx_observer final : public observer {
 public:
  using push_function = int (*)(char const* name);
  using pop_function = int (*)();

  nvtx_observer(push_function push, pop_function pop, observer* next = nullptr) noexcept
      : push_(push), pop_(pop), next_(next) {}

  void count(char const* name, std::int64_t increment) noexcept override {
    if (next_ != nullptr) next_->count(name, increment);
  }
  void begin_range(char const* name) noexcept override {
    push_(name);
    if (next_ != nullptr) next_->begin_range(name);
  }
  void end_range() noexcept override {
    pop_();
    if (next_ != nullptr) next_->end_range();
  }
  void log(log_level level, char const* text) noexcept override {
    if (next_ != nullptr) next_->log(level, text);
  }

 private:
  push_function push_;
  pop_function pop_;
  observer* next_;
};

}  // namespace hypic::inline v0
