// How much `sluice bench` times, and how that is scaled down to the memory that it may use. Pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "tools/bench/op_rates.h"

namespace sluice {

// Sizes in GPU memory, large enough to keep the whole GPU busy.
struct GpuScale {
  uint64_t elements = 128ull << 20;  // of gradients and optimizer state
  OpSizes ops{.rows = 4096, .width = 4096, .vocabulary = 32768};
  double product_seconds = 0.005;  // of one timing of an algorithm
};

// Sizes larger than caches, and times long enough for medians; about a minute in all. The buffers of one
// part are freed before the next part begins, so the largest part bounds the memory.
struct BenchScale {
  uint64_t parameters = 32ull << 20, round_elements = 64ull << 20;
  uint64_t copy_bytes = 256ull << 20;  // of one copy
  uint64_t drive_bytes = 1ull << 30;   // of a file; a multiple of kTransferBytes
  uint64_t lane_bytes = 256ull << 20;  // memory of a lane; likewise
  double drive_seconds = 1.5, request_seconds = 0.3;
  double network_seconds = 0.2;  // of each length of messages
  OpSizes ops;                   // on the cpu device
  GpuScale gpu;
};

// Bytes that ops of these sizes need: of host memory in a BenchScale, of GPU memory in a GpuScale.
using OpBytes = std::function<uint64_t(const OpSizes&)>;

// Bytes of host memory that the largest part holds at once.
uint64_t host_bytes(const BenchScale& scale, uint64_t op_bytes);

// Halves every part of `scale` until it needs at most `bytes` of host memory, or until smaller figures would
// mean nothing. host_bytes() of the result tells whether that was enough.
BenchScale scale_within(BenchScale scale, uint64_t bytes, const OpBytes& op_bytes);

// Does for GPU memory what scale_within() does for host memory.
GpuScale gpu_scale_within(GpuScale scale, uint64_t bytes, const OpBytes& op_bytes);

}  // namespace sluice
