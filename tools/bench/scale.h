// How much `sluice bench` times, and how that is made to fit the memory that it may take. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <functional>

#include "tools/bench/op_rates.h"

namespace sluice {

// In a GPU's memory: large enough to keep all of it busy.
struct GpuScale {
  uint64_t elements = 128ull << 20;  // of gradients and optimizer state
  OpSizes ops{.rows = 4096, .width = 4096, .vocabulary = 32768};
};

// Larger than caches, and long enough for medians; less than a minute in all. What is timed of one kind is
// gone before the next begins, so that the largest bounds the memory.
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

// What the ops of such sizes need of the memory in question.
using OpBytes = std::function<uint64_t(const OpSizes&)>;

// Host memory that the largest part holds at once.
uint64_t host_bytes(const BenchScale& scale, uint64_t op_bytes);

// Every part of `scale` by itself halved until it needs no more than so many bytes of host memory, or as far
// as figures still mean something: host_bytes() of it tells whether that was enough.
BenchScale scale_within(BenchScale scale, uint64_t bytes, const OpBytes& op_bytes);

// Likewise of what lies in a GPU's memory.
GpuScale gpu_scale_within(GpuScale scale, uint64_t bytes, const OpBytes& op_bytes);

}  // namespace sluice
