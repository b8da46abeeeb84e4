// All measurements of `sluice bench`, as a machine description.
//
// Every figure is printed to `out` as soon as it is known. One thread of each rank calls; nothing else should
// run meanwhile.
#pragma once

#include <cstdio>

#include "engine/rates/machine_rates.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "tools/bench/scale.h"

namespace sluice {

// Uses the settled device, host memory, threads, I/O back end and nvme directories of `options`. It first
// checks that these directories can be used. `scale` is for sufficient memory; with less, smaller buffers are
// timed. The first rank measures its machine while the others wait, then all measure the network. Only the
// first rank prints and returns the description. Throws as Device, NvmeFiles and Communicator do, and
// Error(infeasible) if host memory is too small for figures that mean anything.
MachineRates measure_machine(const MemoryOptions& options, const Ranks& ranks, const BenchScale& scale,
                             std::FILE* out);

}  // namespace sluice
