// Memory, streams and events of the calling thread's GPU, given back at the end of a scope. Any thread;
// throws Error(environment) where the GPU has none to give.
#pragma once

#include <cstdint>
#include <utility>

#include "gpu/cuda/error.h"

namespace sluice::cuda {

struct GpuBytes {
  explicit GpuBytes(uint64_t bytes) { check_setup(cudaMalloc(&data, bytes), "Allocating GPU memory"); }
  ~GpuBytes() { (void)cudaFree(data); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  void* data = nullptr;
};

// A stream and the default stream do not wait for each other.
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

class Event {
 public:
  // A thread that waits for the event sleeps, and leaves its core to the optimizer.
  Event() {
    check_setup(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync), "Preparing the GPU's streams");
  }
  ~Event() {
    if (event_) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  cudaEvent_t get() const { return event_; }
  // Whether the stream has come to where the event was recorded last.
  bool is_reached() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result != cudaErrorNotReady) check_step(result);
    if (result == cudaErrorNotReady) (void)cudaGetLastError();  // clears that result, which is no error
    return result == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace sluice::cuda
