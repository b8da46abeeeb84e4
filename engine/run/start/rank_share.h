// What one of several ranks takes of its machine: cores of its own, its GPU, its part of free memory and of
// drives.
//
// Ranks that may run on the same processors divide their cores. A rank keeps processors and GPUs that its
// launcher or the user has given to it alone. Every rank's thread calls rank_share() before it makes anything
// that lasts.
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

// The first 64 GPUs that a rank is shown, as visible_gpus() tells them.
struct ShownGpus {
  int first = 0, count = 0;  // first: the one that --device names; ranks take none before it
  std::array<uint64_t, 64> gpus{};
};

// The ordinals that the ranks of one machine take, in order of rank. Each rank takes the first GPU that it is
// shown and that no rank before it takes. Where none is left, it gets the ordinal after its last GPU, which
// is refused as missing.
std::vector<int> choose_gpus(const std::vector<ShownGpus>& ranks);

struct RankShare {
  MemoryOptions memory;                    // with this rank's threads and GPU
  std::optional<ProcessorSet> processors;  // to bind the rank's thread to; none: leave it as it is
  std::vector<std::string> notes;          // sentences
};

RankShare rank_share(const MemoryOptions& memory, const Ranks& ranks);

// The largest n that divides the number of ranks and for which ranks k * n to k * n + n - 1 share a machine,
// for every k. `machines` has, by rank, the first rank of its machine.
int ranks_together(const std::vector<int>& machines);

// resolve_budgets() for an equal part of the machine's free memory. A limit that is not given in bytes is the
// least that any rank finds, so that all ranks make the same plan.
Budgets resolve_shared_budgets(const MemoryOptions& memory, const Ranks& ranks,
                               const std::optional<AcceleratorUse>& accelerator);

}  // namespace sluice
