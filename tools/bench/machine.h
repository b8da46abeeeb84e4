// What `sluice bench` measures, all of it: a machine description.
//
// Every part is said on `out` as soon as it is known. One thread calls; nothing else should run meanwhile.
#pragma once

#include <cstdio>

#include "engine/machine_rates.h"
#include "engine/run/options.h"
#include "tools/bench/scale.h"

namespace sluice {

// `options`: device (settled), host memory, threads, nvme directories and I/O; the directories are tried
// first. `scale` is what may be timed where memory suffices. Throws as Device and NvmeFiles do, and
// Error(infeasible) where the host memory holds nothing that would be worth timing.
MachineRates measure_machine(const MemoryOptions& options, const BenchScale& scale, std::FILE* out);

}  // namespace sluice
