// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hypic/cuda/exec.hpp"

/// What tests of the CUDA back end need of a device, without a CUDA header: such a program is plain C++.
namespace hypic::test {

/// Memory of the device, poisoned with NaN, `misalignment` bytes past an address that allocations have. Every failure of
/// the run-time library throws.
class device_bytes {
 public:
  device_bytes() = default;
  explicit device_bytes(std::size_t bytes, std::size_t misalignment = 0);
  device_bytes(device_bytes&& other) noexcept { swap(other); }
  device_bytes& operator=(device_bytes&& other) noexcept {
    swap(other);
    return *this;
  }
  ~device_bytes();

  std::byte* data() const { return allocated_ == nullptr ? nullptr : allocated_ + misalignment_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data(), size_}; }
  void write(void const* from, std::size_t bytes, std::size_t at = 0) const;
  void read(void* to, std::size_t bytes, std::size_t at = 0) const;
  void poison() const;

 private:
  void swap(device_bytes& other) noexcept {
    std::swap(allocated_, other.allocated_);
    std::swap(misalignment_, other.misalignment_);
    std::swap(size_, other.size_);
  }
  std::byte* allocated_ = nullptr;
  std::size_t misalignment_ = 0;
  std::size_t size_ = 0;
};

/// An array of the device.
template <class T>
class device_array {
 public:
  device_array() = default;
  explicit device_array(std::size_t count, std::size_t misalignment = 0)
      : bytes_(count * sizeof(T), misalignment), count_(count) {}
  explicit device_array(std::vector<T> const& from, std::size_t misalignment = 0)
      : device_array(from.size(), misalignment) {
    set(from);
  }
  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  std::size_t size() const { return count_; }
  void set(std::vector<T> const& from) const { bytes_.write(from.data(), from.size() * sizeof(T)); }
  std::vector<T> get() const {
    std::vector<T> copy(count_);
    bytes_.read(copy.data(), count_ * sizeof(T));
    return copy;
  }
  void poison() const { bytes_.poison(); }

 private:
  device_bytes bytes_;
  std::size_t count_ = 0;
};

/// A stream that ends with its block.
class test_stream {
 public:
  test_stream();
  test_stream(test_stream const&) = delete;
  test_stream& operator=(test_stream const&) = delete;
  ~test_stream();
  stream_ref get() const { return stream_ref{handle_}; }
  /// Waits for all work; throws where any of it failed.
  void wait() const;

 private:
  CUstream_st* handle_ = nullptr;
};

/// The work that `queue` puts on a stream, captured: it runs when replayed.
class captured_graph {
 public:
  template <class Queue>
  captured_graph(test_stream const& stream, Queue const& queue) : stream_(stream) {
    begin();
    queue();
    end();
  }
  captured_graph(captured_graph const&) = delete;
  captured_graph& operator=(captured_graph const&) = delete;
  ~captured_graph();
  void replay() const;
  std::size_t kernels() const { return kernels_; }  ///< kernel nodes
  std::size_t nodes() const { return nodes_; }      ///< nodes of any kind

 private:
  void begin();
  void end();
  test_stream const& stream_;
  void* executable_ = nullptr;
  std::size_t kernels_ = 0;
  std::size_t nodes_ = 0;
};

/// 10 times major plus minor of the current device's compute capability.
int compute_capability();

/// The paths that the current device has.
std::vector<kernel_path> kernel_paths();

}  // namespace hypic::test
