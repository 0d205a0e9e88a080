// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_test.hpp"
#include "engine/files.hpp"
#include "engine/safetensors.hpp"

namespace {

using engine_test::refusal;
using engine_test::temporary_folder;
using hypic_engine::element_type;
using hypic_engine::safetensors;
using hypic_engine::tensor;
using bytes = std::vector<std::byte>;

/// A file with that length field, header and number of zero bytes of data.
bytes raw_file(std::uint64_t length, std::string const& header, std::size_t data_size) {
  bytes out;
  for (auto const byte : std::as_bytes(std::span(&length, 1))) out.push_back(byte);
  for (auto const byte : std::as_bytes(std::span(header))) out.push_back(byte);
  out.resize(out.size() + data_size);
  return out;
}

bytes raw_file(std::string const& header, std::size_t data_size) { return raw_file(header.size(), header, data_size); }

std::string parse_refusal(bytes const& file) {
  return refusal([&] { safetensors::parse(file, "input"); });
}

std::string entry(std::string const& type, std::string const& shape, std::string const& offsets) {
  return R"({"dtype":)" + type + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// The message for a file of one tensor `t`.
std::string entry_refusal(std::string const& tensor_entry, std::size_t data_size) {
  return parse_refusal(raw_file(R"({"t":)" + tensor_entry + "}", data_size));
}

tensor make_tensor(std::string name, element_type type, std::vector<std::int64_t> shape, bytes const& data) {
  return {std::move(name), type, std::move(shape), data};
}

template <class T>
bytes bytes_of(std::vector<T> const& values) {
  auto const view = std::as_bytes(std::span(values));
  return {view.begin(), view.end()};
}

TEST_CASE("what is written is read back: types, shapes, bytes and metadata") {
  auto const floats = bytes_of(std::vector<float>{1.5F, -2, 3, 4, 5, 6});
  auto const ints = bytes_of(std::vector<std::int32_t>{7, -8});
  auto const longs = bytes_of(std::vector<std::int64_t>{9});
  auto const octets = bytes_of(std::vector<std::uint8_t>{1, 2, 3});
  std::vector<tensor> const written{
      make_tensor("octets", element_type::u8, {3}, octets), make_tensor("matrix", element_type::f32, {2, 3}, floats),
      make_tensor("ints", element_type::i32, {2}, ints), make_tensor("scalar", element_type::i64, {}, longs),
      make_tensor("none", element_type::bf16, {4, 0}, {})};
  temporary_folder const folder;
  hypic_engine::write_safetensors(folder / "file", {{"key", "value \"quoted\"\n"}}, written);
  auto const file = safetensors::read(folder / "file");

  CHECK(file.metadata() == hypic_engine::text_map{{"key", "value \"quoted\"\n"}});
  REQUIRE(file.tensors().size() == written.size());
  for (auto const& expected : written) {
    auto const& found = file.at(expected.name);
    CHECK(found.type == expected.type);
    CHECK(found.shape == expected.shape);
    CHECK(bytes(found.bytes.begin(), found.bytes.end()) == bytes(expected.bytes.begin(), expected.bytes.end()));
  }
  CHECK(hypic_engine::to_float32(file.at("matrix")) == std::vector<float>{1.5F, -2, 3, 4, 5, 6});
  CHECK(hypic_engine::to_int32(file.at("ints")) == std::vector<std::int32_t>{7, -8});
  CHECK(file.find("absent") == nullptr);
  CHECK_THAT(refusal([&] { file.at("absent"); }), Catch::Contains("found no tensor 'absent'"));
}

TEST_CASE("a written file is aligned for readers that map it") {
  auto const odd = bytes(3);
  auto const wide = bytes(16);
  std::vector<tensor> const tensors{make_tensor("a", element_type::u8, {3}, odd),
                                    make_tensor("b", element_type::f64, {2}, wide)};
  auto const file = hypic_engine::serialize_safetensors({}, tensors);
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  CHECK(header % 8 == 0);
  auto const parsed = safetensors::parse(file, "input");
  CHECK(parsed.at("b").bytes.data() + 16 == parsed.at("a").bytes.data());
}

TEST_CASE("a file survives being moved") {
  auto const floats = bytes_of(std::vector<float>{1, 2});
  std::vector<tensor> const tensors{make_tensor("t", element_type::f32, {2}, floats)};
  auto first = safetensors::parse(hypic_engine::serialize_safetensors({}, tensors), "input");
  auto const second = std::move(first);
  CHECK(hypic_engine::to_float32(second.at("t")) == std::vector<float>{1, 2});
}

TEST_CASE("a file without tensors is valid") {
  CHECK(safetensors::parse(raw_file("{}", 0), "input").tensors().empty());
  CHECK(safetensors::parse(raw_file("{}      ", 0), "input").tensors().empty());
}

TEST_CASE("F16 and BF16 widen exactly") {
  std::vector<std::uint16_t> const half_bits{0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x3555, 0x8000, 0x7c00};
  std::vector<float> const halves{1, -2, 0x1p-24F, 0x3ffp-24F, 0x1p-14F, 65504, 0x1.554p-2F, -0.0F, INFINITY};
  auto const half_data = bytes_of(half_bits);
  CHECK(hypic_engine::to_float32(make_tensor("t", element_type::f16, {9}, half_data)) == halves);
  auto const nan_data = bytes_of(std::vector<std::uint16_t>{0x7c01});
  CHECK(std::isnan(hypic_engine::to_float32(make_tensor("t", element_type::f16, {1}, nan_data)).front()));

  auto const brain_data = bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc000, 0x0001, 0x7f80});
  CHECK(hypic_engine::to_float32(make_tensor("t", element_type::bf16, {4}, brain_data)) ==
        std::vector<float>{1, -2, 0x1p-133F, INFINITY});
}

TEST_CASE("elements of another type than asked for are refused") {
  auto const data = bytes(4);
  CHECK_THAT(refusal([&] { hypic_engine::to_float32(make_tensor("t", element_type::i32, {1}, data)); }),
             Catch::Contains("'t': found I32 elements; expected F32, F16 or BF16"));
  CHECK_THAT(refusal([&] { hypic_engine::to_int32(make_tensor("t", element_type::f32, {1}, data)); }),
             Catch::Contains("'t': found F32 elements; expected I32"));
}

TEST_CASE("truncated, oversized and lying header lengths are refused") {
  CHECK_THAT(parse_refusal({}), Catch::Contains("input: found 0 bytes; expected a safetensors file of at least 8"));
  CHECK_THAT(parse_refusal(bytes(7)), Catch::Contains("found 7 bytes"));
  CHECK_THAT(parse_refusal(bytes(8)), Catch::Contains("found no '{'"));
  CHECK_THAT(parse_refusal(raw_file(3, "{}", 0)),
             Catch::Contains("found a header length of 3; expected at most 2 in a file of 10 bytes"));
  auto const huge = std::numeric_limits<std::uint64_t>::max();
  CHECK_THAT(parse_refusal(raw_file(huge, "{}", 0)), Catch::Contains("found a header length of 18446744073709551615"));
  CHECK_THAT(parse_refusal(raw_file(1, "{}", 0)),
             Catch::Contains("found no valid JSON, its text ends after 1 bytes; expected a whole object"));
}

TEST_CASE("a header that is not one JSON object is refused") {
  for (std::string const header : {"[]", " {}", "nothing", "{", "{}{}", "{\"a\":}", "{\"a\xff\":1}", "{\"a\":1e999}"}) {
    CAPTURE(header);
    parse_refusal(raw_file(header, 0));
  }
  CHECK_THAT(parse_refusal(raw_file(std::string("{}\0x", 4), 0)), Catch::Contains("found a NUL at byte 2"));
  CHECK_THAT(parse_refusal(raw_file("{\"a\":" + std::string(100000, '['), 0)), Catch::Contains("nested deeper"));
}

TEST_CASE("equal keys are refused at every level") {
  auto const empty = entry("\"F32\"", "[0]", "[0,0]");
  CHECK_THAT(parse_refusal(raw_file("{\"t\":" + empty + ",\"t\":" + empty + "}", 0)),
             Catch::Contains("found the key 't' twice"));
  CHECK_THAT(parse_refusal(raw_file(R"({"t":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0)),
             Catch::Contains("found the key 'dtype' twice"));
  CHECK_THAT(parse_refusal(raw_file(R"({"__metadata__":{"a":"","a":""}})", 0)), Catch::Contains("key 'a' twice"));
  CHECK(safetensors::parse(raw_file("{\"t\":" + empty + ",\"u\":" + empty + "}", 0), "input").tensors().size() == 2);
}

TEST_CASE("metadata must be strings") {
  CHECK_THAT(parse_refusal(raw_file(R"({"__metadata__":[]})", 0)), Catch::Contains("expected an object of strings"));
  CHECK_THAT(parse_refusal(raw_file(R"({"__metadata__":{"a":1}})", 0)),
             Catch::Contains("found number 1 for 'a'; expected a string"));
}

TEST_CASE("a tensor's entry must be complete, known and in range") {
  CHECK_THAT(entry_refusal("1", 0), Catch::Contains("'t': found number 1; expected an object of dtype"));
  CHECK_THAT(entry_refusal(R"({"dtype":"F32","shape":[0]})", 0), Catch::Contains("expected an object of dtype, shape"));
  CHECK_THAT(
      entry_refusal(R"({"dtype":"F32","shape":[0],"data_offsets":[0,0],"more":[1,2,3,4,5,6,7,8]})", 0),
      Catch::Contains("found an object of 'data_offsets, dtype, more, shape'; expected an object of dtype, shape"));
  CHECK_THAT(entry_refusal(entry("\"F31\"", "[1]", "[0,4]"), 4), Catch::Contains(R"(found dtype string "F31")"));
  CHECK_THAT(entry_refusal(entry("4", "[1]", "[0,4]"), 4), Catch::Contains("found dtype number 4"));
  CHECK_THAT(entry_refusal(entry("\"F32\"", "1", "[0,4]"), 4), Catch::Contains("found shape number 1"));
  CHECK_THAT(entry_refusal(entry("\"F32\"", "[-1]", "[0,4]"), 4), Catch::Contains("found number -1 in shape"));
  CHECK_THAT(entry_refusal(entry("\"F32\"", "[1.0]", "[0,4]"), 4), Catch::Contains("found number 1.0 in shape"));
  CHECK_THAT(entry_refusal(entry("\"F32\"", "[9223372036854775808]", "[0,4]"), 4), Catch::Contains("in shape"));
  CHECK_THAT(entry_refusal(entry("\"F32\"", "[9223372036854775807,2]", "[0,4]"), 4),
             Catch::Contains("expected one that fits 63 bits"));
  CHECK_THAT(entry_refusal(entry("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"), 0),
             Catch::Contains("expected one that fits 63 bits"));
}

TEST_CASE("byte ranges must lie in the file and agree with the shape") {
  for (std::string const offsets : {"[0]", "[0,4,8]", "[4,0]", "[0,5]", "[8,12]", "[0,9223372036854775807]"}) {
    CAPTURE(offsets);
    CHECK_THAT(entry_refusal(entry("\"F32\"", "[1]", offsets), 4), Catch::Contains("within 4 bytes"));
  }
  CHECK_THAT(entry_refusal(entry("\"F32\"", "[2]", "[0,4]"), 4), Catch::Contains("found 4 bytes; expected 8 for F32"));
  CHECK_THAT(entry_refusal(entry("\"BF16\"", "[2]", "[0,8]"), 8),
             Catch::Contains("found 8 bytes; expected 4 for BF16"));
}

TEST_CASE("byte ranges must cover the data without overlap, gap or rest") {
  auto const two = [](std::string const& first, std::string const& second) {
    return "{\"a\":" + entry("\"U8\"", "[4]", first) + ",\"b\":" + entry("\"U8\"", "[4]", second) + "}";
  };
  CHECK(safetensors::parse(raw_file(two("[4,8]", "[0,4]"), 8), "input").tensors().size() == 2);
  CHECK_THAT(parse_refusal(raw_file(two("[0,4]", "[3,7]"), 7)),
             Catch::Contains("'b': found its data at byte 3; expected 4"));
  CHECK_THAT(parse_refusal(raw_file(two("[0,4]", "[5,9]"), 9)),
             Catch::Contains("'b': found its data at byte 5; expected 4"));
  CHECK_THAT(parse_refusal(raw_file(two("[1,5]", "[5,9]"), 9)),
             Catch::Contains("'a': found its data at byte 1; expected 0"));
  CHECK_THAT(parse_refusal(raw_file(two("[0,4]", "[4,8]"), 9)), Catch::Contains("found 1 bytes after the last tensor"));
  CHECK_THAT(parse_refusal(raw_file("{}", 1)), Catch::Contains("found 1 bytes after the last tensor"));
}

TEST_CASE("a hostile name stays on one line of a message") {
  auto const name = "evil\\n\\u001b[2J" + std::string(1000, 'x');
  parse_refusal(raw_file("{\"" + name + "\":1}", 0));
}

TEST_CASE("the writer refuses what the reader would") {
  auto const data = bytes(4);
  auto const write_refusal = [](std::vector<tensor> const& tensors) {
    temporary_folder const folder;
    auto const message = refusal([&] { hypic_engine::write_safetensors(folder / "file", {}, tensors); });
    CHECK(!std::filesystem::exists(folder / "file"));
    return message;
  };
  auto const good = make_tensor("t", element_type::f32, {1}, data);
  CHECK_THAT(write_refusal({good, good}), Catch::Contains("under a name that is taken"));
  CHECK_THAT(write_refusal({make_tensor("__metadata__", element_type::f32, {1}, data)}), Catch::Contains("is taken"));
  CHECK_THAT(write_refusal({make_tensor("t", element_type::f32, {2}, data)}),
             Catch::Contains("found 4 bytes for F32 [2]"));
}

}  // namespace
