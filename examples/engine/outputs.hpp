// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "engine/arguments.hpp"

namespace hypic_engine {

/// Says before the work, not after it, that a result would have no place or would take another file's. `options` name
/// results, given or not; `inputs` are files that the work reads. Files are told apart by what they are, not by how they
/// are spelled; a device or a pipe takes any number of results.
/// Errors: usage_error (two options that name one file), engine_error (a folder in place of the file, no folder to hold
///         it or one that cannot be written, an input in place of the file).
void require_places(arguments const& given, std::span<std::string_view const> options,
                    std::span<std::filesystem::path const> inputs);

}  // namespace hypic_engine
