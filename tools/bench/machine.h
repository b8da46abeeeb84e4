// What `sluice bench` measures, all of it: a machine description.
//
// Every part is said on `out` as soon as it is known. One thread calls; nothing else should run meanwhile.
#pragma once

#include <cstdint>
#include <cstdio>

#include "engine/machine_rates.h"
#include "engine/run/options.h"
#include "tools/bench/op_rates.h"

namespace sluice {

// How much is timed: larger than caches, and long enough for medians; less than a minute in all.
struct BenchScale {
  uint64_t parameters = 32ull << 20, copy_bytes = 256ull << 20, round_elements = 64ull << 20;
  uint64_t drive_bytes = 1ull << 30;  // a multiple of kTransferBytes
  double drive_seconds = 1.5, request_seconds = 0.3;
  OpSizes ops;
};

// `options`: device (settled), threads, nvme directories and I/O. Throws as Device and NvmeFiles do.
MachineRates measure_machine(const MemoryOptions& options, const BenchScale& scale, std::FILE* out);

}  // namespace sluice
