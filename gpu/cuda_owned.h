// Memory and streams of the current GPU that are given back at the end of a scope, for measurements. Any
// thread; throws Error(environment) where the GPU has none to give.
#pragma once

#include <cstdint>

#include "gpu/cuda_error.h"

namespace sluice::cuda {

struct GpuBytes {
  explicit GpuBytes(uint64_t bytes) { check_setup(cudaMalloc(&data, bytes), "Allocating GPU memory"); }
  ~GpuBytes() { (void)cudaFree(data); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  void* data = nullptr;
};

struct Stream {
  Stream() { check_setup(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "Making a stream"); }
  ~Stream() { (void)cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t stream = nullptr;
};

}  // namespace sluice::cuda
