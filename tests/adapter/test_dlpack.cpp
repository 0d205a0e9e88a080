// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "hypic/adapter/dlpack.hpp"

using namespace hypic;

namespace {

// The members of DLPack's tensor, under the names that its header gives them.
enum device_kind { on_cpu = 1, on_cuda = 2, on_cuda_host = 3 };
struct foreign_tensor {
  void* data = nullptr;
  struct {
    device_kind device_type = on_cpu;
    std::int32_t device_id = 0;
  } device{};
  std::int32_t ndim = 0;
  struct {
    std::uint8_t code = 2;
    std::uint8_t bits = 32;
    std::uint16_t lanes = 1;
  } dtype{};
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;
  std::uint64_t byte_offset = 0;
};

struct owned {
  std::vector<float> values = std::vector<float>(60);
  std::vector<std::int64_t> shape{3, 4, 5}, strides{20, 5, 1};
  foreign_tensor tensor;
  owned() {
    std::iota(values.begin(), values.end(), 0.0f);
    tensor.data = values.data();
    tensor.ndim = 3;
    tensor.shape = shape.data();
  }
};

std::string refusal(foreign_tensor const& tensor) {
  auto const view = from_dlpack<3>(tensor);
  REQUIRE_FALSE(view);
  return message(view.error());
}

}  // namespace

TEST_CASE("A DLPack tensor is seen where it lies, dense, strided or from an offset", "[adapter][dlpack]") {
  owned of;
  auto const dense = from_dlpack<3>(of.tensor);
  REQUIRE(dense);
  CHECK((*dense)(2, 3, 4) == 59.0f);
  CHECK(dense->data == of.values.data());

  std::vector<std::int64_t> permuted{5, 20, 1};
  of.shape = {4, 3, 5};
  of.tensor.strides = permuted.data();
  auto const strided = from_dlpack<3>(of.tensor);
  REQUIRE(strided);
  CHECK((*strided)(3, 2, 4) == 59.0f);

  owned shifted;
  shifted.shape[0] = 2;
  shifted.tensor.byte_offset = 20 * sizeof(float);
  shifted.tensor.device.device_type = on_cuda_host;
  auto const later = from_dlpack<3>(shifted.tensor);
  REQUIRE(later);
  CHECK((*later)(0, 0, 0) == 20.0f);
}

TEST_CASE("A view becomes a DLPack tensor and comes back the same", "[adapter][dlpack]") {
  std::vector<float> values(60);
  auto view = dense_view(values.data(), 3, 4, 5);
  auto const tensor = to_dlpack<foreign_tensor>(view);
  CHECK(tensor.ndim == 3);
  CHECK(tensor.shape[1] == 4);
  CHECK(tensor.strides[0] == 20);
  auto const back = from_dlpack<3>(tensor);
  REQUIRE(back);
  CHECK((back->data == view.data && back->extent == view.extent && back->stride == view.stride));
}

TEST_CASE("A DLPack tensor that the host back end cannot read is refused by name", "[adapter][dlpack]") {
  auto const changed = [](auto change) {
    owned of;
    change(of);
    return refusal(of.tensor);
  };
  CHECK(changed([](owned& o) { o.tensor.ndim = 2; }) == "invalid_shape: ndim is 2, expected equal to 3");
  CHECK(changed([](owned& o) { o.tensor.dtype.code = 4; }) == "unsupported: dtype.code is 4, expected equal to 2");
  CHECK(changed([](owned& o) { o.tensor.dtype.bits = 16; }) == "unsupported: dtype.bits is 16, expected equal to 32");
  CHECK(changed([](owned& o) { o.tensor.dtype.lanes = 4; }) == "unsupported: dtype.lanes is 4, expected equal to 1");
  CHECK(changed([](owned& o) { o.tensor.device.device_type = on_cuda; }) ==
        "unsupported: device.device_type is 2, expected equal to 1");
  CHECK(changed([](owned& o) { o.tensor.byte_offset = 2; }) ==
        "invalid_argument: byte_offset is 2, expected a multiple of 4");
  CHECK(changed([](owned& o) { o.shape[1] = -4; }) == "invalid_shape: shape.extent[1] is -4, expected at least 0");
  CHECK(changed([](owned& o) { o.tensor.data = nullptr; }) == "invalid_argument: data has no meaning here");
}
