// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "hypic/store/key.hpp"

namespace hypic::inline v0 {

/// cached: a segment, computed alone once and reused. fresh: glue, a question, generated tokens: forwarded whole, never
/// stored.
enum class span_kind : std::uint8_t { cached, fresh };

/// A piece of a prompt. `key` names the record of a cached one.
struct prompt_span {
  span_kind kind = span_kind::fresh;
  std::vector<std::int32_t> tokens;
  record_key key{};
};

}  // namespace hypic::inline v0
