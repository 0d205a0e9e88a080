// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "hypic/core/status.hpp"

namespace hypic::inline v0 {
namespace {

struct code_words {
  std::string_view name;
  std::string_view meaning;  ///< completes a sentence that begins with the argument
};

constexpr code_words words_of(status::code code) noexcept {
  switch (code) {
    case status::ok: return {"ok", "is well"};
    case status::invalid_argument: return {"invalid_argument", "has no meaning here"};
    case status::invalid_shape: return {"invalid_shape", "has a shape that does not fit"};
    case status::out_of_range: return {"out_of_range", "lies outside of its bounds"};
    case status::unsupported: return {"unsupported", "is well-formed, but refused for now"};
    case status::workspace_too_small: return {"workspace_too_small", "is too small"};
    case status::capacity_exceeded: return {"capacity_exceeded", "is full"};
    case status::not_found: return {"not_found", "does not exist"};
    case status::corrupt: return {"corrupt", "fails its digest"};
    case status::backend_failure: return {"backend_failure", "reported a failure"};
    case status::out_of_memory: return {"out_of_memory", "could not be allocated"};
  }
  return {"unknown_code", "is unknown"};
}

constexpr std::string_view words_of(status::relation relation) noexcept {
  switch (relation) {
    case status::relation::equal_to: return "equal to";
    case status::relation::at_least: return "at least";
    case status::relation::at_most: return "at most";
    case status::relation::multiple_of: return "a multiple of";
    case status::relation::none: break;
  }
  return "";
}

/// What was found of the argument: "q", "q.extent[2]", "q.stride[0]".
std::string subject(status const& outcome) {
  switch (outcome.measured()) {
    case status::measure::extent: return fmt::format("{}.extent[{}]", outcome.argument(), outcome.dimension());
    case status::measure::stride: return fmt::format("{}.stride[{}]", outcome.argument(), outcome.dimension());
    case status::measure::none: break;
  }
  return outcome.argument();
}

}  // namespace

std::string message(status const& outcome) {
  auto const words = words_of(outcome.value());
  std::string_view const argument = outcome.argument();
  if (argument.empty()) return std::string{words.name};
  if (outcome.wanted() == status::relation::none)
    return fmt::format("{}: {} {}", words.name, subject(outcome), words.meaning);
  return fmt::format("{}: {} is {}, expected {} {}", words.name, subject(outcome), outcome.found(),
                     words_of(outcome.wanted()), outcome.expected());
}

}  // namespace hypic::inline v0
