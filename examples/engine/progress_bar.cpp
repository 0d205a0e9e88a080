// SPDX-License-Identifier: Apache-2.0
#include "engine/progress_bar.hpp"

#include <unistd.h>

#include <iostream>
#include <utility>

namespace hypic_engine {

progress_bar::progress_bar() : terminal_(::isatty(STDERR_FILENO) == 1) {}

progress_bar::~progress_bar() { wipe(); }

std::function<void(std::int64_t, std::int64_t)> progress_bar::show(std::string label) {
  return [this, label = std::move(label)](std::int64_t done, std::int64_t all) {
    if (!terminal_) return;
    if (done < all) {
      draw(label, done, all);
    } else {
      wipe();
    }
  };
}

void progress_bar::draw(std::string const& label, std::int64_t done, std::int64_t all) {
  constexpr std::int64_t width = 32;
  auto const filled = static_cast<std::size_t>(width * done / all);
  auto const counts = std::to_string(done) + "/" + std::to_string(all);
  auto const line = label + " [" + std::string(filled, '#') + std::string(width - filled, '.') + "] " + counts;
  wipe();
  std::cerr << line << std::flush;
  drawn_ = line.size();
}

void progress_bar::wipe() {
  if (drawn_ > 0) std::cerr << '\r' << std::string(drawn_, ' ') << '\r' << std::flush;
  drawn_ = 0;
}

}  // namespace hypic_engine
