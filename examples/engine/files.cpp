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

/// Bytes that are to lie at `target`, written to `path`.
void write_bytes(fs::path const& path, std::span<std::byte const> bytes, fs::path const& target) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out)
    fail(quoted_path(target), ": cannot write ", bytes.size(), " bytes; expected a writable place with that room");
}

/// Files that lie beside their places until all of them are there.
class staged_files {
 public:
  staged_files() = default;
  ~staged_files() {
    std::error_code ignored;
    for (auto const& one : files_) fs::remove(one.partial, ignored);
  }
  staged_files(staged_files const&) = delete;
  staged_files& operator=(staged_files const&) = delete;

  void add(fs::path const& target, std::span<std::byte const> bytes) {
    auto partial = target;
    partial += ".partial-" + std::to_string(::getpid());
    files_.push_back({partial, target});
    write_bytes(partial, bytes, target);
    std::error_code error;
    if (auto const older = fs::status(target, error); fs::exists(older))
      fs::permissions(partial, older.permissions(), error);
  }

  void put_in_place() {
    std::error_code error;
    for (auto const& one : files_) {
      fs::rename(one.partial, one.target, error);
      if (error) fail(quoted_path(one.target), ": found ", error.message(), "; expected a writable place");
    }
  }

 private:
  struct staged {
    fs::path partial;
    fs::path target;
  };
  std::vector<staged> files_;
};

bool is_device(fs::path const& path) {
  std::error_code ignored;
  auto const status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail(quoted_path(path), ": found a folder; expected a file to write");
  return fs::exists(status) && !fs::is_regular_file(status);
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

void write_files(std::span<file_content const> files) {
  staged_files staged;
  for (auto const& file : files)
    if (!is_device(file.path)) staged.add(resolved(file.path), file.bytes);
  for (auto const& file : files)
    if (is_device(file.path)) write_bytes(file.path, file.bytes, file.path);
  staged.put_in_place();
}

void write_file(fs::path const& path, std::span<std::byte const> bytes) {
  file_content const file{path.string(), {bytes.begin(), bytes.end()}};
  write_files({&file, 1});
}

}  // namespace hypic_engine
