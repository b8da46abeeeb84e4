// How much `sluice bench` times, and how that is made to fit the memory that it may take. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <functional>

#include "tools/bench/op_rates.h"

namespace sluice {

// Larger than caches, and long enough for medians; less than a minute in all. Every part but the last two
// lines is gone before the next begins, so that the largest bounds them.
struct BenchScale {
  uint64_t parameters = 32ull << 20, round_elements = 64ull << 20;
  uint64_t copy_bytes = 256ull << 20;  // of one copy
  uint64_t drive_bytes = 1ull << 30;   // of a file; a multiple of kTransferBytes
  uint64_t lane_bytes = 256ull << 20;  // memory of a lane; likewise
  double drive_seconds = 1.5, request_seconds = 0.3;
  OpSizes ops;
};

// What the ops of such sizes need of the memory in question.
using OpBytes = std::function<uint64_t(const OpSizes&)>;

// Host memory that the largest part holds at once.
uint64_t host_bytes(const BenchScale& scale, uint64_t op_bytes);

// `sizes` halved until their ops need no more than so many bytes, or as far as they go.
OpSizes ops_within(OpSizes sizes, uint64_t bytes, const OpBytes& op_bytes);

// Every part of `scale` by itself halved until it needs no more than so many bytes of host memory, or as far
// as figures still mean something: host_bytes() of it tells whether that was enough.
BenchScale scale_within(BenchScale scale, uint64_t bytes, const OpBytes& op_bytes);

}  // namespace sluice
