// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hypic_engine {

/// The element types of safetensors files that the engine knows.
enum class element_type { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

/// The name that a safetensors header uses: "F32", "BF16", ...
std::string_view name_of(element_type type);

/// Bytes of one element.
std::int64_t byte_size(element_type type);

/// A named tensor over bytes that somebody else owns: little-endian elements, row-major, at any alignment.
struct tensor {
  std::string name;
  element_type type = element_type::f32;
  std::vector<std::int64_t> shape;
  std::span<std::byte const> bytes;
};

/// Text for messages: "[3, 192]".
std::string shape_text(std::span<std::int64_t const> shape);

/// The elements in fp32, exactly. Errors: engine_error when they are not F32, F16 or BF16.
std::vector<float> to_float32(tensor const& t);

/// The elements of an I32 tensor. Errors: engine_error when they are of another type.
std::vector<std::int32_t> to_int32(tensor const& t);

using text_map = std::map<std::string, std::string>;

/// The content of a safetensors file, which it owns and has checked whole: the header fits the file and is valid JSON
/// without equal keys; every type is known; every shape, byte range and file size agree; the ranges cover the data
/// without a gap, an overlap or trailing bytes.
/// Source: the safetensors format, README of huggingface/safetensors.
class safetensors {
 public:
  /// Takes the bytes of a whole file; `source` begins each message. Errors: engine_error.
  static safetensors parse(std::vector<std::byte> bytes, std::string source);

  /// Reads a file. Errors: engine_error.
  static safetensors read(std::filesystem::path const& path);

  safetensors(safetensors&&) noexcept = default;
  safetensors& operator=(safetensors&&) noexcept = default;
  safetensors(safetensors const&) = delete;
  safetensors& operator=(safetensors const&) = delete;
  ~safetensors() = default;

  /// What messages call this file.
  std::string const& source() const noexcept { return source_; }

  /// The header's `__metadata__`.
  text_map const& metadata() const noexcept { return metadata_; }

  /// All tensors, by name; their bytes live as long as this object or what it is moved to.
  std::vector<tensor> const& tensors() const noexcept { return tensors_; }

  /// The tensor of that name, or null.
  tensor const* find(std::string_view name) const noexcept;

  /// The tensor of that name. Errors: engine_error when there is none.
  tensor const& at(std::string_view name) const;

 private:
  safetensors(std::vector<std::byte> bytes, std::string source);

  std::vector<std::byte> bytes_;
  std::string source_;
  text_map metadata_;
  std::vector<tensor> tensors_;
};

/// The bytes of a safetensors file. Data starts at a multiple of 8 and wider types come first, so all is aligned.
/// Errors: engine_error when two names are equal, a name is `__metadata__`, or bytes and shape disagree.
std::vector<std::byte> serialize_safetensors(text_map const& metadata, std::span<tensor const> tensors);

/// Writes that file, whole or not at all. Errors: engine_error.
void write_safetensors(std::filesystem::path const& path, text_map const& metadata, std::span<tensor const> tensors);

}  // namespace hypic_engine
