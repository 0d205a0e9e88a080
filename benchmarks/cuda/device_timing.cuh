// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hypic_benchmarks {

/// Ends the program with the run-time library's words where a call failed.
void check(cudaError_t error);

/// Device memory, NaN until it is filled.
template <class T>
class device_memory {
 public:
  explicit device_memory(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, count * sizeof(T)));
    poison();
  }
  explicit device_memory(std::vector<T> const& from) : device_memory(from.size()) {
    check(cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  device_memory(device_memory const&) = delete;
  device_memory& operator=(device_memory const&) = delete;
  ~device_memory() { cudaFree(data_); }
  T* data() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  void poison() const { check(cudaMemset(data_, 0xff, bytes())); }
  std::vector<T> read(std::size_t first, std::size_t count) const {
    std::vector<T> copy(count);
    check(cudaMemcpy(copy.data(), data_ + first, count * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// Arrays of the device that live as long as this does.
class device_arrays {
 public:
  template <class T>
  T* upload(std::vector<T> const& from) {
    auto memory = std::make_shared<device_memory<T>>(from);
    kept_.push_back(memory);
    return memory->data();
  }

 private:
  std::vector<std::shared_ptr<void>> kept_;
};

/// Fills `count` floats with N(0, deviation), the same for the same seed.
void fill_normal(float* data, std::size_t count, std::uint64_t seed, float deviation);

/// The median time in milliseconds of what `queue` puts on a stream: captured in a graph, replayed, timed by events on
/// the device, the L2 cache flushed before each.
double median_ms(std::function<void(cudaStream_t)> const& queue);

/// Bytes a second of a large copy, read and written both counted.
double copy_rate();

std::string device_name();

}  // namespace hypic_benchmarks
