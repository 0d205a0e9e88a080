// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace hypic_engine {

/// All bytes of the regular file at `path`.
/// Errors: engine_error when there is none, when it is a folder or a device, or when it cannot be read to its end.
std::vector<std::byte> read_file(std::filesystem::path const& path);

/// Where a write to `path` ends up: symbolic links are followed.
std::filesystem::path resolved(std::filesystem::path const& path);

/// A file and what it is to hold.
struct file_content {
  std::string path;
  std::vector<std::byte> bytes;
};

/// Gives the files their contents, all of them or none: each is written beside its place, and when all are, they are
/// renamed into their places, with the permissions of the files that were there. A device or a pipe is written to
/// directly, before the renaming. The paths name different files.
/// Errors: engine_error when a place cannot be written; files that were there before are then as they were.
void write_files(std::span<file_content const> files);

/// write_files for one.
void write_file(std::filesystem::path const& path, std::span<std::byte const> bytes);

}  // namespace hypic_engine
