// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "engine/error.hpp"
#include "hypic/core/status.hpp"

namespace hypic_engine {

/// Throws an engine_error in the library's words unless the outcome is ok.
inline void check(hypic::status const& outcome, std::string_view what) {
  if (outcome != hypic::status::ok) fail(what, ": ", message(outcome));
}

/// The value of a result. Throws where there is none.
template <class T>
T take(hypic::result<T> made, std::string_view what) {
  if (!made) check(made.error(), what);
  return std::move(made).value();
}

}  // namespace hypic_engine
