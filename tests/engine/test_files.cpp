// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <span>
#include <string>

#include "engine/engine_test.hpp"
#include "engine/files.hpp"

namespace {

using engine_test::refusal;
using engine_test::temporary_folder;
using hypic_engine::read_file;
namespace fs = std::filesystem;

std::string read_text(fs::path const& path) {
  auto const bytes = read_file(path);
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

void write_text(fs::path const& path, std::string const& text) {
  hypic_engine::write_file(path, std::as_bytes(std::span(text)));
}

std::size_t entries(fs::path const& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST_CASE("what is written is read back, also over an older file and when empty") {
  temporary_folder const folder;
  for (std::string const text : {"first", "", "second"}) {
    write_text(folder / "file", text);
    CHECK(read_text(folder / "file") == text);
  }
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("reading what is no readable regular file is refused by name") {
  temporary_folder const folder;
  CHECK_THAT(refusal([&] { read_file(folder / "absent"); }), Catch::Contains("absent': found nothing there"));
  CHECK_THAT(refusal([&] { read_file(folder.path()); }), Catch::Contains("found a folder; expected a file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal([&] { read_file(folder / "pipe"); }), Catch::Contains("found a device or a pipe"));
  write_text(folder / "locked", "text");
  fs::permissions(folder / "locked", fs::perms::none);
  if (::geteuid() != 0) {  // root reads it all the same
    CHECK_THAT(refusal([&] { read_file(folder / "locked"); }), Catch::Contains("cannot be opened"));
  }
}

TEST_CASE("a file name with a line break stays on one line of a message") {
  CHECK_THAT(refusal([] { read_file("/absent\nfile\x01"); }), Catch::Contains("'/absent\\x0afile\\x01'"));
}

TEST_CASE("a write that fails leaves nothing behind") {
  temporary_folder const folder;
  CHECK_THAT(refusal([&] { write_text(folder / "absent/file", "text"); }), Catch::Contains("cannot write 4 bytes"));
  CHECK_THAT(refusal([&] { write_text(folder.path(), "text"); }), Catch::Contains("found a folder"));
  CHECK(entries(folder.path()) == 0);
}

TEST_CASE("several files are written, or none of them where one has no place") {
  temporary_folder const folder;
  std::vector<std::byte> const bytes(3, std::byte{'x'});
  std::vector<hypic_engine::file_content> files = {{folder / "first", bytes}, {folder / "second", bytes}};
  write_text(folder / "first", "old");
  for (auto const& bad : {(folder / "absent/file").string(), std::string("/dev/full"), folder.path().string()}) {
    CAPTURE(bad);
    auto with_bad = files;
    with_bad.push_back({bad, bytes});
    CHECK_THAT(refusal([&] { hypic_engine::write_files(with_bad); }), Catch::Contains("'" + bad + "': "));
    std::swap(with_bad.front(), with_bad.back());
    CHECK_THAT(refusal([&] { hypic_engine::write_files(with_bad); }), Catch::Contains("'" + bad + "': "));
    CHECK(read_text(folder / "first") == "old");
    CHECK(entries(folder.path()) == 1);
  }
  hypic_engine::write_files(files);
  CHECK(read_text(folder / "first") == "xxx");
  CHECK(read_text(folder / "second") == "xxx");
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("a symbolic link stays one, and its target is written") {
  temporary_folder const folder;
  write_text(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_text(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_text(folder / "target") == "new");
}

TEST_CASE("a file that is written anew keeps its permissions") {
  temporary_folder const folder;
  write_text(folder / "private", "old");
  fs::permissions(folder / "private", fs::perms::owner_read | fs::perms::owner_write);
  write_text(folder / "private", "new");
  CHECK(fs::status(folder / "private").permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(read_text(folder / "private") == "new");
}

TEST_CASE("a device or a pipe is written to, not replaced") {
  write_text("/dev/null", "text");
  CHECK(fs::is_character_file("/dev/null"));

  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  write_text("/dev/fd/" + std::to_string(ends[1]), "text");
  std::string read(4, ' ');
  CHECK(::read(ends[0], read.data(), read.size()) == 4);
  CHECK(read == "text");
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
