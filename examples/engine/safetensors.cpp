// SPDX-License-Identifier: Apache-2.0
#include "engine/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "engine/error.hpp"
#include "engine/files.hpp"
#include "engine/json.hpp"

namespace hypic_engine {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used as it lies");

constexpr std::size_t length_bytes = 8;                // the header's length comes first
constexpr std::uint64_t largest_header = 100'000'000;  // the format's own cap
constexpr std::string_view metadata_key = "__metadata__";

struct type_entry {
  std::string_view name;
  std::int64_t bytes;
};
// In the order of element_type.
constexpr std::array<type_entry, 10> type_table{{{"F64", 8},
                                                 {"F32", 4},
                                                 {"F16", 2},
                                                 {"BF16", 2},
                                                 {"I64", 8},
                                                 {"I32", 4},
                                                 {"I16", 2},
                                                 {"I8", 1},
                                                 {"U8", 1},
                                                 {"BOOL", 1}}};

type_entry const& entry(element_type type) { return type_table[static_cast<std::size_t>(type)]; }

/// Elements times bytes each; empty when that does not fit 63 bits.
std::optional<std::int64_t> byte_count(std::span<std::int64_t const> shape, element_type type) {
  std::int64_t bytes = byte_size(type);
  for (auto const extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// ---- Reading ----

std::size_t header_length(std::span<std::byte const> file, std::string const& source) {
  if (file.size() < length_bytes) {
    fail(source, ": found ", file.size(), " bytes; expected a safetensors file of at least ", length_bytes);
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), length_bytes);
  auto const most = std::min<std::uint64_t>(largest_header, file.size() - length_bytes);
  if (length > most) {
    fail(source, ": found a header length of ", length, "; expected at most ", most, " in a file of ", file.size(),
         " bytes");
  }
  return static_cast<std::size_t>(length);
}

std::string_view header_text(std::span<std::byte const> file, std::size_t length, std::string const& source) {
  std::string_view const text(reinterpret_cast<char const*>(file.data()) + length_bytes, length);
  if (!text.starts_with('{')) fail(source, ": found no '{' at byte ", length_bytes, "; expected a JSON header there");
  return text;
}

text_map parse_metadata(json const& value, std::string const& source) {
  auto const where = source + ": header entry '__metadata__'";
  if (!value.is_object()) fail(where, ": found ", shown(value), "; expected an object of strings");
  text_map out;
  for (auto const& [key, text] : value.items()) {
    if (!text.is_string()) fail(where, ": found ", shown(text), " for ", in_quotes(key), "; expected a string");
    out.emplace(key, text.get<std::string>());
  }
  return out;
}

/// An integer of 0..2^63-1, or empty.
std::optional<std::int64_t> as_count(json const& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  auto const count = value.get<std::uint64_t>();
  if (count > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(count);
}

/// Reads one entry of the header: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}.
class tensor_entry {
 public:
  tensor_entry(std::string name, json const& value, std::string const& source)
      : name_(std::move(name)), value_(value), where_(source + ": tensor " + in_quotes(name_)) {
    constexpr std::array keys{"dtype", "shape", "data_offsets"};
    bool const complete = value.is_object() && value.size() == keys.size() &&
                          std::all_of(keys.begin(), keys.end(), [&](char const* key) { return value.contains(key); });
    if (!complete) fail(where_, ": found ", shown(value), "; expected an object of dtype, shape and data_offsets");
  }

  tensor read(std::span<std::byte const> data) const {
    tensor out{name_, type(), counts("shape"), {}};
    auto const offsets = counts("data_offsets");
    auto const size = static_cast<std::int64_t>(data.size());
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > size) {
      fail(where_, ": found data_offsets ", shape_text(offsets), "; expected [begin, end] within ", size, " bytes");
    }
    auto const bytes = byte_count(out.shape, out.type);
    if (!bytes) fail(where_, ": found shape ", shape_text(out.shape), "; expected one that fits 63 bits");
    if (offsets[1] - offsets[0] != *bytes) {
      fail(where_, ": found ", offsets[1] - offsets[0], " bytes; expected ", *bytes, " for ", name_of(out.type), " ",
           shape_text(out.shape));
    }
    out.bytes = data.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(*bytes));
    return out;
  }

 private:
  element_type type() const {
    auto const& name = value_.at("dtype");
    for (std::size_t i = 0; i < type_table.size(); ++i) {
      if (name == type_table[i].name) return static_cast<element_type>(i);
    }
    fail(where_, ": found dtype ", shown(name), "; expected F64, F32, F16, BF16, I64, I32, I16, I8, U8 or BOOL");
  }

  std::vector<std::int64_t> counts(char const* key) const {
    auto const& list = value_.at(key);
    if (!list.is_array()) fail(where_, ": found ", key, " ", shown(list), "; expected an array of integers");
    std::vector<std::int64_t> out;
    for (auto const& item : list) {
      auto const count = as_count(item);
      if (!count) fail(where_, ": found ", shown(item), " in ", key, "; expected integers of 0 to 2^63-1");
      out.push_back(*count);
    }
    return out;
  }

  std::string name_;
  json const& value_;
  std::string where_;
};

/// The byte ranges must follow each other from the first byte of the data to its last.
void require_full_cover(std::span<tensor const> tensors, std::span<std::byte const> data, std::string const& source) {
  std::vector<tensor const*> by_place;
  for (auto const& t : tensors) by_place.push_back(&t);
  std::sort(by_place.begin(), by_place.end(), [](tensor const* left, tensor const* right) {
    return std::pair(left->bytes.data(), left->bytes.size()) < std::pair(right->bytes.data(), right->bytes.size());
  });
  auto const* covered_to = data.data();
  for (auto const* t : by_place) {
    if (t->bytes.data() != covered_to) {
      fail(source, ": tensor ", in_quotes(t->name), ": found its data at byte ", t->bytes.data() - data.data(),
           "; expected ", covered_to - data.data(), ", where the data before it ends");
    }
    covered_to += t->bytes.size();
  }
  auto const trailing = data.data() + data.size() - covered_to;
  if (trailing != 0) fail(source, ": found ", trailing, " bytes after the last tensor's data; expected none");
}

float half_to_float(std::uint16_t bits) {
  unsigned const exponent = (bits >> 10U) & 31U;
  unsigned const mantissa = bits & 1023U;
  float const sign = (bits & 0x8000U) != 0U ? -1.0F : 1.0F;
  if (exponent == 31U) return mantissa == 0U ? sign * INFINITY : NAN;
  if (exponent == 0U) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024U + mantissa), static_cast<int>(exponent) - 25);
}

float brain_float_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }

template <class Element>
std::vector<Element> elements(tensor const& t) {
  std::vector<Element> out(t.bytes.size() / sizeof(Element));
  if (!out.empty()) std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  return out;
}

std::vector<float> widened(tensor const& t, float (*widen)(std::uint16_t)) {
  auto const narrow = elements<std::uint16_t>(t);
  std::vector<float> out(narrow.size());
  std::transform(narrow.begin(), narrow.end(), out.begin(), widen);
  return out;
}

// ---- Writing ----

void require_writable(std::span<tensor const> tensors) {
  std::set<std::string_view> names{metadata_key};
  for (auto const& t : tensors) {
    if (!names.insert(t.name).second)
      fail("tensor ", in_quotes(t.name), ": cannot be written under a name that is taken");
    if (byte_count(t.shape, t.type) != static_cast<std::int64_t>(t.bytes.size())) {
      fail("tensor ", in_quotes(t.name), ": cannot be written: found ", t.bytes.size(), " bytes for ", name_of(t.type),
           " ", shape_text(t.shape));
    }
  }
}

std::vector<tensor const*> widest_first(std::span<tensor const> tensors) {
  std::vector<tensor const*> out;
  for (auto const& t : tensors) out.push_back(&t);
  std::stable_sort(out.begin(), out.end(), [](tensor const* left, tensor const* right) {
    return byte_size(left->type) > byte_size(right->type);
  });
  return out;
}

std::string header_of(text_map const& metadata, std::span<tensor const* const> tensors) {
  json header = json::object();
  if (!metadata.empty()) header[std::string(metadata_key)] = metadata;
  std::size_t begin = 0;
  for (auto const* t : tensors) {
    auto const end = begin + t->bytes.size();
    header[t->name] = {{"dtype", name_of(t->type)}, {"shape", t->shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

std::string_view name_of(element_type type) { return entry(type).name; }

std::int64_t byte_size(element_type type) { return entry(type).bytes; }

std::string shape_text(std::span<std::int64_t const> shape) {
  constexpr std::size_t shown_extents = 8;
  std::string out = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), shown_extents); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + (shape.size() > shown_extents ? ", ...]" : "]");
}

std::vector<float> to_float32(tensor const& t) {
  switch (t.type) {
    case element_type::f32: return elements<float>(t);
    case element_type::f16: return widened(t, half_to_float);
    case element_type::bf16: return widened(t, brain_float_to_float);
    default: fail("tensor ", in_quotes(t.name), ": found ", name_of(t.type), " elements; expected F32, F16 or BF16");
  }
}

std::vector<std::int32_t> to_int32(tensor const& t) {
  if (t.type != element_type::i32) {
    fail("tensor ", in_quotes(t.name), ": found ", name_of(t.type), " elements; expected I32");
  }
  return elements<std::int32_t>(t);
}

safetensors::safetensors(std::vector<std::byte> bytes, std::string source)
    : bytes_(std::move(bytes)), source_(std::move(source)) {
  std::span<std::byte const> const file(bytes_);
  auto const length = header_length(file, source_);
  auto const header = parse_json_object(header_text(file, length, source_), source_ + ": header");
  auto const data = file.subspan(length_bytes + length);
  for (auto const& [name, value] : header.items()) {  // in the order of the names
    if (name == metadata_key) {
      metadata_ = parse_metadata(value, source_);
    } else {
      tensors_.push_back(tensor_entry(name, value, source_).read(data));
    }
  }
  require_full_cover(tensors_, data, source_);
}

safetensors safetensors::parse(std::vector<std::byte> bytes, std::string source) {
  return safetensors(std::move(bytes), std::move(source));
}

safetensors safetensors::read(std::filesystem::path const& path) {
  return safetensors(read_file(path), in_quotes(path.string()));
}

tensor const* safetensors::find(std::string_view name) const noexcept {
  auto const at_or_after = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                            [](tensor const& t, std::string_view wanted) { return t.name < wanted; });
  return at_or_after != tensors_.end() && at_or_after->name == name ? &*at_or_after : nullptr;
}

tensor const& safetensors::at(std::string_view name) const {
  auto const* found = find(name);
  if (found == nullptr) fail(source_, ": found no tensor ", in_quotes(name), "; expected one");
  return *found;
}

std::vector<std::byte> serialize_safetensors(text_map const& metadata, std::span<tensor const> tensors) {
  require_writable(tensors);
  auto const ordered = widest_first(tensors);
  auto const header = header_of(metadata, ordered);
  std::uint64_t const length = header.size();
  std::vector<std::byte> out;
  auto const append = [&out](std::span<std::byte const> bytes) {
    for (auto const byte : bytes) out.push_back(byte);
  };
  append(std::as_bytes(std::span(&length, 1)));
  append(std::as_bytes(std::span(header)));
  for (auto const* t : ordered) append(t->bytes);
  return out;
}

void write_safetensors(std::filesystem::path const& path, text_map const& metadata, std::span<tensor const> tensors) {
  write_file(path, serialize_safetensors(metadata, tensors));
}

}  // namespace hypic_engine
