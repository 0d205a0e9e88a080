// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/error.hpp"
#include "engine/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

/// Any bytes either parse or end in an engine_error; what parses can be read to its last element.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const file = hypic_engine::safetensors::parse({bytes.begin(), bytes.end()}, "input");
    for (auto const& t : file.tensors()) hypic_engine::to_float32(t);
  } catch (hypic_engine::engine_error const&) {
  }
  return 0;
}
