// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include <catch2/catch.hpp>

namespace hypic::test {

/// Address space for floats without memory behind it, until it is written: for offsets past 2^31 elements.
class sparse_floats {
 public:
  explicit sparse_floats(std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(float)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  sparse_floats(sparse_floats const&) = delete;
  sparse_floats& operator=(sparse_floats const&) = delete;
  ~sparse_floats() { munmap(data_, bytes_); }
  float* data() const { return static_cast<float*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace hypic::test
