// SPDX-License-Identifier: Apache-2.0
#include "hypic/core/version.hpp"

namespace hypic::inline v0 {

version library_version() noexcept { return header_version; }

}  // namespace hypic::inline v0
