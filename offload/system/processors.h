// Which processors a rank's threads run on: the ranks of a machine have cores of their own.
//
// Facts come from hwloc.
#pragma once

#include <vector>

#include "engine/base/affinity.h"

namespace sluice {

// The machine's cores with those of their processors that are allowed, in the order in which neighbours share
// caches and memory. Where hwloc knows no cores, each processor is one.
std::vector<ProcessorSet> cores_of(const ProcessorSet& allowed);

struct ProcessorShare {
  ProcessorSet processors;  // that the user's threads may run on
  int threads = 1;          // that every user may have
  bool apart = false;       // no other user has these processors
};

// That of one of equal users of so many cores: neighbours, and as many as for the others or one more. Where
// there are fewer cores than users, all share all.
ProcessorShare share_of(const std::vector<ProcessorSet>& cores, int user, int users);

}  // namespace sluice
