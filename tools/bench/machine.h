// What `sluice bench` measures, all of it: a machine description.
//
// Every part is said on `out` as soon as it is known. One thread of each rank calls; nothing else should run
// meanwhile.
#pragma once

#include <cstdio>

#include "engine/rates/machine_rates.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "tools/bench/scale.h"

namespace sluice {

// `options`: device (settled), host memory, threads, nvme directories and I/O; the directories are tried
// first. `scale` is what may be timed where memory suffices. The first rank measures its machine while the
// others wait, then all measure the network; it alone speaks, and gets the description. Throws as Device,
// NvmeFiles and Communicator do, and Error(infeasible) where the host memory holds nothing worth timing.
MachineRates measure_machine(const MemoryOptions& options, const Ranks& ranks, const BenchScale& scale,
                             std::FILE* out);

}  // namespace sluice
