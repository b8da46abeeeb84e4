// What one of several ranks takes of its machine: cores of its own, its GPU, its part of free memory and
// disk.
//
// Ranks that may run on the same processors divide their cores. A rank that its launcher or the user has
// given processors of its own keeps them; likewise GPUs. Called by every rank's thread, before it makes
// anything that lasts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/affinity.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "engine/run/start/budgets.h"

namespace sluice {

// The GPUs that a rank is shown, as visible_gpus() tells them; of more than 64 the first ones.
struct ShownGpus {
  int first = 0, count = 0;  // first: that --device names, those before it are not for ranks
  std::array<uint64_t, 64> gpus{};
};

// The ordinals that the ranks of one machine take, in order of rank: each the first GPU that it is shown and
// no rank before it takes. Where none is left, the one after its last, which is refused as missing.
std::vector<int> choose_gpus(const std::vector<ShownGpus>& ranks);

struct RankShare {
  MemoryOptions memory;                    // with this rank's threads and GPU
  std::optional<ProcessorSet> processors;  // to be bound to; none: as it is
  std::vector<std::string> notes;          // a sentence each
};

RankShare rank_share(const MemoryOptions& memory, const Ranks& ranks);

// The most consecutive ranks that share a machine, if all ranks are divided into as many: by rank, the first
// rank of its machine.
int ranks_together(const std::vector<int>& machines);

// By resolve_budgets, for an equal part of what the machine has free. Limits that are not given in bytes are
// those of the rank that finds least: others would give each rank a plan of its own.
Budgets resolve_shared_budgets(const MemoryOptions& memory, const Ranks& ranks,
                               const std::optional<AcceleratorUse>& accelerator);

}  // namespace sluice
