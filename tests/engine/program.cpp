// SPDX-License-Identifier: Apache-2.0
#include "engine/program.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>

#include "engine/engine_test.hpp"
#include "engine/files.hpp"

extern char** environ;

namespace engine_test {
namespace {

std::string text_of(std::filesystem::path const& path) {
  auto const bytes = hypic_engine::read_file(path);
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// The three standard streams of a program, by file name.
class streams {
 public:
  streams(std::string const& out, std::string const& err) {
    ::posix_spawn_file_actions_init(&actions_);
    open(STDIN_FILENO, "/dev/null", O_RDONLY);
    open(STDOUT_FILENO, out, O_WRONLY | O_CREAT);
    open(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_NOCTTY);
  }
  ~streams() { ::posix_spawn_file_actions_destroy(&actions_); }
  streams(streams const&) = delete;
  streams& operator=(streams const&) = delete;

  int run(std::string const& path, std::vector<std::string> words) const {
    words.insert(words.begin(), path);
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    pid_t child = 0;
    if (::posix_spawn(&child, path.c_str(), &actions_, nullptr, pointers.data(), environ) != 0)
      throw std::runtime_error("cannot start " + path);
    int status = 0;
    if (::waitpid(child, &status, 0) != child) throw std::runtime_error("cannot wait for " + path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  void open(int stream, std::string const& name, int flags) {
    constexpr mode_t mine = 0600;
    ::posix_spawn_file_actions_addopen(&actions_, stream, name.c_str(), flags, mine);
  }

  posix_spawn_file_actions_t actions_;
};

}  // namespace

program_result run_program(std::string const& path, std::vector<std::string> const& words, output to) {
  temporary_folder const folder;
  std::string const out = to == output::captured ? folder / "out" : "/dev/full";
  program_result result;
  result.code = streams(out, folder / "err").run(path, words);
  if (to == output::captured) result.out = text_of(out);
  result.err = text_of(folder / "err");
  return result;
}

std::string terminal_output(std::string const& path, std::vector<std::string> const& words) {
  int const terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0)
    throw std::runtime_error("cannot make a terminal");
  std::string const name = ::ptsname(terminal);
  int const held = ::open(name.c_str(), O_RDWR | O_NOCTTY);  // what was written stays until it is read
  streams("/dev/null", name).run(path, words);
  std::string shown;
  char bytes[4096];
  for (::ssize_t count = 0; (count = ::read(terminal, bytes, sizeof bytes)) > 0;)
    shown.append(bytes, static_cast<std::size_t>(count));
  ::close(held);
  ::close(terminal);
  return shown;
}

}  // namespace engine_test
