// SPDX-License-Identifier: Apache-2.0
#include "engine/files.hpp"

#include <unistd.h>

#include <fstream>
#include <ios>

#include <string>
#include <system_error>

#include "engine/error.hpp"

namespace hypic_engine {
namespace {

namespace fs = std::filesystem;

std::string quoted_path(fs::path const& path) { return in_quotes(path.string()); }

void require_regular_file(fs::path const& path) {
  std::error_code error;
  auto const status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(quoted_path(path), ": found nothing there; expected a file");
  if (error) fail(quoted_path(path), ": found ", error.message(), "; expected a readable file");
  if (fs::is_directory(status)) fail(quoted_path(path), ": found a folder; expected a file");
  if (!fs::is_regular_file(status)) fail(quoted_path(path), ": found a device or a pipe; expected a regular file");
}

std::vector<std::byte> buffer_for(fs::path const& path) {
  std::error_code error;
  auto const size = fs::file_size(path, error);
  if (error) fail(quoted_path(path), ": found ", error.message(), "; expected a readable file");
  try {
    return std::vector<std::byte>(size);
  } catch (std::exception const&) {
    fail(quoted_path(path), ": found ", size, " bytes; expected a file that fits into memory");
  }
}

void write_bytes(fs::path const& path, std::span<std::byte const> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out)
    fail(quoted_path(path), ": cannot write ", bytes.size(), " bytes; expected a writable place with that room");
}

void replace_file(fs::path const& target, std::span<std::byte const> bytes) {
  auto partial = target;
  partial += ".partial-" + std::to_string(::getpid());
  std::error_code error;
  try {
    write_bytes(partial, bytes);
    if (auto const older = fs::status(target, error); fs::exists(older))
      fs::permissions(partial, older.permissions(), error);
    fs::rename(partial, target, error);
    if (error) fail(quoted_path(target), ": found ", error.message(), "; expected a writable place");
  } catch (engine_error const&) {
    fs::remove(partial, error);
    throw;
  }
}

}  // namespace

std::vector<std::byte> read_file(fs::path const& path) {
  require_regular_file(path);
  auto bytes = buffer_for(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(quoted_path(path), ": cannot be opened; expected a readable file");
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::size_t>(in.gcount()) != bytes.size()) {
    fail(quoted_path(path), ": could read ", in.gcount(), " bytes; expected ", bytes.size());
  }
  return bytes;
}

fs::path resolved(fs::path const& path) {
  std::error_code error;
  auto const target = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : target;
}

void write_file(fs::path const& path, std::span<std::byte const> bytes) {
  std::error_code ignored;
  auto const status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail(quoted_path(path), ": found a folder; expected a file to write");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    write_bytes(path, bytes);
  } else {
    replace_file(resolved(path), bytes);
  }
}

}  // namespace hypic_engine
