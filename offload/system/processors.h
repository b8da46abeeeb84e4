// Which processors a rank's threads run on: the ranks of a machine have cores of their own.
//
// Facts come from hwloc.
#pragma once

#include <vector>

#include "engine/base/affinity.h"

namespace sluice {

// The machine's cores, each with its allowed processors, in an order in which neighbours share caches and
// memory. Where hwloc knows no cores, each processor counts as one.
std::vector<ProcessorSet> cores_of(const ProcessorSet& allowed);

struct ProcessorShare {
  ProcessorSet processors;  // on which the rank's threads may run
  int threads = 1;          // threads that every rank may have
  bool apart = false;       // no other rank has these processors
};

// The share of rank number `rank` of `ranks`: neighbouring cores. Two ranks' numbers of cores differ by at
// most one. Where there are fewer cores than ranks, all ranks share all cores.
ProcessorShare share_of(const std::vector<ProcessorSet>& cores, int rank, int ranks);

}  // namespace sluice
