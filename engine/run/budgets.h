// From what the user grants to what the arenas may hold.
//
// arena capacity = limit - (host) the runtime reserve. Limits that are `auto` are what is free, less a
// margin. Nothing is allocated here. Callers: the verbs, before they plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/options.h"
#include "gpu/accelerator.h"
#include "gpu/machine.h"
#include "offload/memory_limits.h"

namespace sluice {

struct Budgets {
  int threads = 1;
  TierCapacities limits;           // as granted or found: device (if it has its own arena), host, nvme
  TierCapacities arenas;           // what the planner may fill
  uint64_t runtime_reserve = 0;    // of the host limit: libraries, stacks, buffers
  uint64_t library_bytes = 0;      // of the reserve, on an accelerator: for what libraries load when prepared
  // Of the device limit, on an accelerator: context, modules, handles, and page tables of as much host memory
  // as may be pinned.
  uint64_t device_reserve = 0;
  std::vector<std::string> notes;  // one sentence each: margins, what `auto` became
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

// --threads, or one a core.
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

// What a limit leaves for an arena, in whole granules.
uint64_t arena_capacity(uint64_t limit, uint64_t reserve, uint64_t granule);

// A host limit that does not even hold what lies beside the arena leaves an arena of 0 bytes, and the plan
// says what would do. Throws Error(environment) for a budget above what is free or a directory that cannot
// serve. `check_free`: false for `plan`, which may ask about another machine.
Budgets resolve_budgets(const MemoryOptions& options, const MemoryLimits& limits, bool check_free,
                        const std::optional<AcceleratorUse>& accelerator = std::nullopt);

}  // namespace sluice
