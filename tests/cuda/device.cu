// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace hypic::test {
namespace {

/// Without a device the program ends as ctest knows a skipped test; any other failure is one.
void check(cudaError_t error) {
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    std::fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(error));
    std::_Exit(77);
  }
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

}  // namespace

device_bytes::device_bytes(std::size_t bytes, std::size_t misalignment) : misalignment_(misalignment), size_(bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes + misalignment + 1));
  allocated_ = static_cast<std::byte*>(memory);
  poison();
}

device_bytes::~device_bytes() { cudaFree(allocated_); }

void device_bytes::write(void const* from, std::size_t bytes, std::size_t at) const {
  check(cudaMemcpy(data() + at, from, bytes, cudaMemcpyHostToDevice));
  check(cudaDeviceSynchronize());  // streams of the tests do not wait for the default one
}

void device_bytes::read(void* to, std::size_t bytes, std::size_t at) const {
  check(cudaMemcpy(to, data() + at, bytes, cudaMemcpyDeviceToHost));
}

void device_bytes::poison() const {
  check(cudaMemset(data(), 0xff, size_));
  check(cudaDeviceSynchronize());
}

test_stream::test_stream() { check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
test_stream::~test_stream() { cudaStreamDestroy(handle_); }
void test_stream::wait() const { check(cudaStreamSynchronize(handle_)); }

void captured_graph::begin() {
  check(cudaStreamBeginCapture(stream_.get().handle(), cudaStreamCaptureModeThreadLocal));
}

void captured_graph::end() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_.get().handle(), &graph));
  check(cudaGraphGetNodes(graph, nullptr, &nodes_));
  std::vector<cudaGraphNode_t> all(nodes_);
  check(cudaGraphGetNodes(graph, all.data(), &nodes_));
  for (auto const node : all) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type));
    kernels_ += type == cudaGraphNodeTypeKernel ? 1 : 0;
  }
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0));
  check(cudaGraphDestroy(graph));
  executable_ = executable;
}

captured_graph::~captured_graph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)); }

void captured_graph::replay() const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream_.get().handle()));
  stream_.wait();
}

int compute_capability() {
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return 10 * major + minor;
}

std::vector<kernel_path> kernel_paths() {
  if (compute_capability() == 90) return {kernel_path::generic, kernel_path::hopper};
  return {kernel_path::generic};
}

}  // namespace hypic::test
