// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <string>
#include <thread>
#include <vector>

#include "hypic/adapter/nvtx.hpp"
#include "hypic/adapter/trace.hpp"
#include "hypic/algebra/summary.hpp"

using namespace hypic;

namespace {

struct written final : observer {
  std::vector<std::string> lines;
  void count(char const* name, std::int64_t increment) noexcept override {
    lines.push_back("count " + std::string(name) + " " + std::to_string(increment));
  }
  void begin_range(char const* name) noexcept override { lines.push_back("begin " + std::string(name)); }
  void end_range() noexcept override { lines.emplace_back("end"); }
  void log(log_level level, char const* text) noexcept override {
    lines.push_back((level == log_level::warning ? "warning " : "info ") + std::string(text));
  }
};

std::vector<std::string> pushed;
int push(char const* name) {
  pushed.emplace_back(name);
  return 0;
}
int pop() {
  pushed.emplace_back("-");
  return 0;
}

void compose_once(observer& watch) {
  state_dims const dims{1, 1, 1, 1};
  float memory[6] = {};
  auto const summary = [&](int i) {
    return summary_view{dense_view(memory + 2 * i, 1, 1), dense_view(memory + 2 * i + 1, 1, 1, 1)};
  };
  REQUIRE(compose<retnet>(dims, summary(0), summary(1), summary(2), {.watch = &watch}) == status::ok);
}

std::size_t occurrences(std::string const& text, std::string const& of) {
  std::size_t found = 0;
  for (auto at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("A call is counted, and is a range", "[adapter][observer]") {
  written watch;
  compose_once(watch);
  CHECK(watch.lines == std::vector<std::string>{"count algebra.compose 1", "begin algebra.compose", "end"});
}

TEST_CASE("A call that is refused is neither counted nor a range", "[adapter][observer]") {
  written watch;
  CHECK(compose<retnet>({1, 1, 1, 1}, {}, {}, {}, {.watch = &watch}) != status::ok);
  CHECK(watch.lines.empty());
}

TEST_CASE("NVTX is told of ranges, and the next observer of everything", "[adapter][observer]") {
  pushed.clear();
  written next;
  nvtx_observer watch{push, pop, &next};
  compose_once(watch);
  watch.log(log_level::warning, "text");
  CHECK(pushed == std::vector<std::string>{"algebra.compose", "-"});
  CHECK(next.lines ==
        std::vector<std::string>{"count algebra.compose 1", "begin algebra.compose", "end", "warning text"});
  nvtx_observer alone{push, pop};
  compose_once(alone);
  CHECK(pushed.size() == 4);
}

TEST_CASE("A trace has ranges of every thread, running totals and quoted lines", "[adapter][trace]") {
  trace watch;
  compose_once(watch);
  std::thread([&] { compose_once(watch); }).join();
  watch.log(log_level::warning, "a \"quoted\" \\ line\n");
  watch.begin_range("never ends");
  auto const json = watch.json();
  CHECK(occurrences(json, "\"ph\":\"X\"") == 2);
  CHECK(occurrences(json, "\"tid\":1,") == 3);
  CHECK(occurrences(json, "\"tid\":2,") == 2);
  CHECK(occurrences(json, "\"args\":{\"total\":1}") == 1);
  CHECK(occurrences(json, "\"args\":{\"total\":2}") == 1);
  CHECK(occurrences(json, R"("name":"warning: a \"quoted\" \\ line\u000a")") == 1);
  CHECK(occurrences(json, "never ends") == 0);
  CHECK(watch.dropped() == 0);
}

TEST_CASE("A full trace drops events and counts them", "[adapter][trace]") {
  trace watch(1);
  compose_once(watch);
  compose_once(watch);
  CHECK(watch.dropped() == 3);
  CHECK(occurrences(watch.json(), "\"ph\"") == 1);
  CHECK(trace(0).json() == "{\"traceEvents\":[]}\n");
}
