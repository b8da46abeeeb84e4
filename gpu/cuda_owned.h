// Memory and streams of the calling thread's GPU that are given back at the end of a scope. Any thread;
// throws Error(environment) where the GPU has none to give.
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

// Without implicit order to others.
class Stream {
 public:
  Stream() {
    check_setup(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "Preparing the GPU's streams");
  }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace sluice::cuda
