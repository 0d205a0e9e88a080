// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace hypic_engine {

/// A bar on standard error that shows how far some long work is; nothing at all where that is no terminal. It is wiped
/// when the work or the bar ends.
class progress_bar {
 public:
  progress_bar();
  ~progress_bar();
  progress_bar(progress_bar const&) = delete;
  progress_bar& operator=(progress_bar const&) = delete;

  /// A function that shows `done` of `all` steps of the work that `label` names. Calls come one at a time; the bar
  /// outlives them.
  std::function<void(std::int64_t done, std::int64_t all)> show(std::string label);

 private:
  void draw(std::string const& label, std::int64_t done, std::int64_t all);
  void wipe();

  bool terminal_ = false;
  std::size_t drawn_ = 0;  // columns that hold something
};

}  // namespace hypic_engine
