// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace hypic_engine {

/// All bytes of the regular file at `path`.
/// Errors: engine_error when there is none, when it is a folder or a device, or when it cannot be read to its end.
std::vector<std::byte> read_file(std::filesystem::path const& path);

/// Where a write to `path` ends up: symbolic links are followed.
std::filesystem::path resolved(std::filesystem::path const& path);

/// Makes `bytes` the content of the file at `path`, whole or not at all: they are written beside it and renamed onto
/// it, with the permissions of the file that was there. A device or a pipe is written to directly.
/// Errors: engine_error when the place cannot be written; a file that was there before is then as it was.
void write_file(std::filesystem::path const& path, std::span<std::byte const> bytes);

}  // namespace hypic_engine
