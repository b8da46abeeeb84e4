// Runs ops of models on the emulated GPU and counts what their launches do with memory (traffic.h), beside
// what they must do at least. Values do not matter, and products compute nothing.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/traffic.h"

namespace sluice::emulation {

// Bytes that must be moved at least, bytes of distinct sectors that are read and written, and bytes of
// visits. The ratios are 0 where nothing must be moved.
struct Moved {
  uint64_t least = 0, read = 0, written = 0, visited = 0;
  double ratio() const { return by_least(read + written); }
  double ratio_of_visits() const { return by_least(visited); }
  double by_least(uint64_t bytes) const {
    return least == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(least);
  }
};

struct CountedOp {
  std::string name;
  double flops = 0;
  Moved all;      // by all launches
  Moved kernels;  // by our own kernels, without products
  std::vector<LaunchTraffic> launches;
};

// What kernels can tell of a GPU: its multiprocessors, on which grids that stride depend, and shared memory.
EmulatedGpu h100();
EmulatedGpu rtx_4090();

// Counts every op of the model's segments on an H100, forward and backward as plan_segment derives it. Ops
// that are alike are counted once. Of an attention op one head is counted.
std::vector<CountedOp> count_ops(const Model& model);

// Counts linear_cross_entropy, forward and backward.
std::vector<CountedOp> count_loss(int64_t rows, int64_t columns, int64_t vocabulary, const EmulatedGpu& gpu);

// Counts Device::round, Device::sum over four ranks, and Device::optimize on an H100, for `elements` of a
// 16-bit gradient.
std::vector<CountedOp> count_updates(uint64_t elements);

}  // namespace sluice::emulation
