// From what the user grants to what the arenas may hold.
//
// arena = limit - reserve, in whole granules. Limits that are `auto` are what is free, less a margin. Nothing
// is allocated here. Callers: the verbs, before they plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/options/options.h"
#include "gpu/accelerator.h"
#include "gpu/machine.h"
#include "offload/system/memory_limits.h"

namespace sluice {

struct TierBudget {
  std::string tier, option;  // "device", "gpu-mem"
  uint64_t limit = 0;        // as granted or found
  uint64_t reserve = 0;      // of the limit, for what lies beside the arena
  uint64_t arena = 0;        // what the planner may fill
  uint64_t granule = 1;      // of the arena's memory or files
  bool driver = false;       // the reserve is also for a driver: in the next process a little more or less

  void set_aside(uint64_t bytes);                  // as the reserve
  uint64_t limit_for(uint64_t arena_bytes) const;  // to grant, so that the arena may have as much
};

struct Budgets {
  int threads = 1;
  // If it has an arena of its own. Reserve, on an accelerator: context, modules, handles, and page tables of
  // as much host memory as may be pinned.
  std::optional<TierBudget> device;
  TierBudget host{"host", "host-mem"};  // reserve: libraries, stacks, buffers
  std::optional<TierBudget> nvme;
  uint64_t library_bytes = 0;  // of the host's reserve, on an accelerator: what libraries load when prepared
  std::vector<std::string> notes;  // one sentence each: margins, what `auto` became

  std::vector<const TierBudget*> by_tier() const;  // as the machine has them
  TierCapacities arenas() const;
  // The limits to grant, by tier, so that the arenas together may have as much.
  std::vector<uint64_t> limits_for(const std::vector<uint64_t>& arena_bytes) const;
};

// What an accelerator's driver and libraries hold before anything is planned.
struct AcceleratorUse {
  AcceleratorMemory device;
  uint64_t host_bytes = 0;  // of the process, resident: here, or assumed of a machine that is not here
  bool is_here = true;
};

// What a matrix product's library may load while programs are prepared, on the device and beside it. Not
// measured; where it is too little, start_session() plans anew.
constexpr uint64_t kLibraryKernelBytes = 192ull << 20;

// --threads, or one a processor that this thread may run on.
int resolve_threads(const MemoryOptions& options);

// The process's own use of host memory beside the arenas: 64 MiB and 1 MiB a thread. Libraries and buffers
// need 25 MiB, checksums 8 bytes a MiB of the nvme arena; 24 MiB are for the program.
uint64_t runtime_reserve_bytes(int threads);

// What a program of so many tasks takes beyond its part of the reserve, at most. Measured, with many small
// tasks and the least budgets, where transfers are most: while it runs, with its trace, 1.3 KB a task for one
// tier, 2.8 for two, 5.1 for three; while it is planned, which ends before the arenas are filled, 2.5, 4.0
// and 5.4.
uint64_t program_bytes_beside_reserve(uint64_t tasks, size_t tiers);
uint64_t planning_bytes_beside_reserve(uint64_t tasks, size_t tiers);

// A host limit that does not even hold what lies beside the arena leaves an arena of 0 bytes, and the plan
// says what would do. Throws Error(environment) for a budget above what is free or a directory that cannot
// serve. `check_free`: false for `plan`, which may ask about another machine. `sharers`: ranks of a machine,
// whose part of memory `limits` are; the disk is divided here. `disk`: what another machine has of it, where
// no directory is looked at; nor is one for a plan with --nvme-mem in bytes.
Budgets resolve_budgets(const MemoryOptions& options, const MemoryLimits& limits, bool check_free,
                        const std::optional<AcceleratorUse>& accelerator = std::nullopt, int sharers = 1,
                        std::optional<uint64_t> disk = std::nullopt);

}  // namespace sluice
