// What one of several ranks takes of its machine: cores of its own, its GPU, its part of free memory and
// disk.
//
// Ranks that may run on the same processors divide their cores. A rank that its launcher or the user has
// given processors of its own keeps them. Called by every rank's thread, before it makes anything that lasts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/affinity.h"
#include "engine/run/budgets.h"
#include "engine/run/options.h"
#include "engine/run/ranks.h"

namespace sluice {

struct RankShare {
  MemoryOptions memory;                    // with this rank's threads and GPU
  std::optional<ProcessorSet> processors;  // to be bound to; none: as it is
  std::vector<std::string> notes;          // a sentence each
};

RankShare rank_share(const MemoryOptions& memory, const Ranks& ranks);

// By resolve_budgets, for an equal part of what the machine has free. Limits that are not given in bytes are
// those of the rank that finds least: others would give each rank a plan of its own.
Budgets resolve_shared_budgets(const MemoryOptions& memory, const Ranks& ranks,
                               const std::optional<AcceleratorUse>& accelerator);

}  // namespace sluice
