// SPDX-License-Identifier: Apache-2.0
#include "engine/error.hpp"

namespace hypic_engine {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t shown_bytes = 200;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out = "'";
  for (char const c : text.substr(0, shown_bytes)) {
    auto const byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', digits[byte >> 4U], digits[byte & 15U]};
    }
  }
  if (text.size() > shown_bytes) out += "...";
  return out + "'";
}

}  // namespace hypic_engine
