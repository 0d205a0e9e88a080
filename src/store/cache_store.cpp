// SPDX-License-Identifier: Apache-2.0
#include "hypic/store/cache_store.hpp"

namespace hypic::inline v0 {

char const* to_string(miss_reason reason) noexcept {
  switch (reason) {
    case miss_reason::none: return "none";
    case miss_reason::absent: return "absent";
    case miss_reason::incomplete: return "incomplete";
    case miss_reason::token_mismatch: return "token mismatch";
    case miss_reason::layout_mismatch: return "layout mismatch";
    case miss_reason::corrupt: return "corrupt";
    case miss_reason::store_failure: return "store failure";
  }
  return "unknown";
}

}  // namespace hypic::inline v0
