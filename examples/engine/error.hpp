// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace hypic_engine {

/// The engine's only exception. Its text is one complete line: where, what was found, what was expected.
class engine_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// `text` in single quotes, fit for a one-line message: at most 200 of its bytes, those that are not printable ASCII
/// written as \xNN.
std::string in_quotes(std::string_view text);

/// Throws an engine_error whose text is `parts`, written one after the other.
template <class... Parts>
[[noreturn]] void fail(Parts const&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw engine_error(message.str());
}

}  // namespace hypic_engine
