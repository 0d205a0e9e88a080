// SPDX-License-Identifier: Apache-2.0
#include "device_timing.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace hypic_benchmarks {
namespace {

constexpr int repetitions = 31;
constexpr std::size_t flushed_bytes = std::size_t{256} << 20;  // several times any L2 cache

__device__ std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27, x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

__device__ float uniform(std::uint64_t bits) { return (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f; }

__global__ void normal_kernel(float* data, std::size_t count, std::uint64_t seed, float deviation) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (auto i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    float const u = uniform(mixed(seed * 0x9e3779b97f4a7c15u + 2 * i));
    float const v = uniform(mixed(seed * 0x9e3779b97f4a7c15u + 2 * i + 1));
    data[i] = deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
  }
}

__global__ void copy_kernel(uint4 const* from, uint4* to, std::size_t count) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (auto i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    to[i] = from[i];
}

}  // namespace

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

void fill_normal(float* data, std::size_t count, std::uint64_t seed, float deviation) {
  normal_kernel<<<1024, 256>>>(data, count, seed, deviation);
  check(cudaDeviceSynchronize());
}

double median_ms(std::function<void(cudaStream_t)> const& queue) {
  static device_memory<char> const flushed(flushed_bytes);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t work = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  queue(stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&work, graph, 0));
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(work, stream));
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    check(cudaMemsetAsync(flushed.data(), i, flushed.bytes(), stream));
    check(cudaEventRecord(begin, stream));
    check(cudaGraphLaunch(work, stream));
    check(cudaEventRecord(end, stream));
    check(cudaStreamSynchronize(stream));
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(static_cast<double>(ms));
  }
  check(cudaGraphExecDestroy(work));
  check(cudaGraphDestroy(graph));
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  check(cudaStreamDestroy(stream));
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[repetitions / 2];
}

double copy_rate() {
  device_memory<uint4> const from(std::size_t{1} << 28);
  device_memory<uint4> const to(std::size_t{1} << 28);
  double const ms = median_ms([&](cudaStream_t stream) {
    copy_kernel<<<1 << 16, 256, 0, stream>>>(from.data(), to.data(), std::size_t{1} << 28);
  });
  return 2.0 * static_cast<double>(from.bytes()) / ms * 1e3;
}

std::string device_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  return properties.name;
}

}  // namespace hypic_benchmarks
