// Computes the bytes that the arenas may hold from the budgets that the user grants.
//
// arena = limit - reserve, in whole granules. A limit that is `auto` is the free memory less a margin.
// Nothing is allocated here. The verbs call resolve_budgets() before they plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "gpu/accelerator.h"
#include "gpu/machine.h"
#include "offload/system/memory_limits.h"

namespace sluice {

struct TierBudget {
  std::string tier, option;  // "device", "gpu-mem"
  uint64_t limit = 0;        // as granted or found
  uint64_t reserve = 0;      // part of the limit, for what lies outside the arena
  uint64_t arena = 0;        // what the planner may fill
  uint64_t granule = 1;      // of the arena's memory or files
  bool driver = false;       // the reserve also covers a driver, whose use differs a little by process
  uint64_t most = kNoLimit;  // what the machine has for this rank; kNoLimit: not known
  // Kernel memory that each page of 4 KiB of the arena takes, since lanes register it for file I/O.
  uint64_t bytes_a_page = 0;

  void set_aside(uint64_t bytes);  // makes `bytes` the reserve, and computes `arena` anew
  // What an arena takes of the limit: its granules, and the kernel memory for its pages that the reserve does
  // not cover.
  uint64_t taken_by(uint64_t arena_bytes) const;
  uint64_t limit_for(uint64_t arena_bytes) const;  // the limit to grant for such an arena
};

struct Budgets {
  int threads = 1;
  // Present where the device has an arena of its own. The reserve of an accelerator covers context, modules,
  // handles, and page tables for the whole host budget, which may be pinned.
  std::optional<TierBudget> device;
  TierBudget host{"host", "host-mem"};  // reserve: libraries, stacks
  std::optional<TierBudget> nvme;
  uint64_t library_bytes = 0;      // part of the host's reserve: what an accelerator's libraries load
  std::vector<std::string> notes;  // one sentence each: margins, what `auto` became

  std::vector<const TierBudget*> by_tier() const;  // in the order of the machine tables
  TierCapacities arenas() const;
  std::vector<uint64_t> most_arenas() const;  // by tier, if each limit were `most`
  // Takes `bytes` of tables, such as names and places of weights, from the host's arena, as far as they
  // exceed what the reserve has for tables.
  void reserve_table(uint64_t bytes);
  // The limits to grant, by tier, for arenas of these sizes.
  std::vector<uint64_t> limits_for(const std::vector<uint64_t>& arena_bytes) const;
  // By tier: the limit for an arena of `alone` bytes, while the other limits stay as given. If these other
  // limits suffice for the arenas of `together`, and the tier's limit for `together` is smaller (fewer page
  // tables), the result is that smaller limit.
  std::vector<std::optional<uint64_t>> limits_alone(const std::vector<std::optional<uint64_t>>& alone,
                                                    const std::vector<uint64_t>& together) const;
  // These budgets with another host limit. A driver's reserve then has page tables for that limit.
  Budgets with_host_limit(uint64_t limit) const;
};

// What an accelerator's driver and libraries hold before anything is planned.
struct AcceleratorUse {
  AcceleratorMemory device;
  // The most that the process has held so far, including the part of its code that the runtime's reserve also
  // counts. If the accelerator is not here, host_bytes is an assumption (kHostBytesAssumed).
  uint64_t host_bytes = 0;
  bool is_here = true;
};

// The bytes that a library of matrix products may load into device memory while a device is prepared. It may
// load as many into host memory. The number is an assumption, not a measurement. If it is too small,
// start_session() plans anew.
constexpr uint64_t kLibraryKernelBytes = 192ull << 20;

// --threads, or one for each processor that this thread may run on.
int resolve_threads(const MemoryOptions& options);

// Host memory that the process uses outside the arenas: 64 MiB, and 1 MiB for each thread. Of the 64 MiB,
// libraries and buffers need 25 and the program 24. The rest is for checksums (8 bytes for each MiB of the
// nvme arena), 8 MiB of kernel memory for registering the host arena, and a margin.
uint64_t runtime_reserve_bytes(int threads);

// Address space that is mapped outside the arenas, most of it never touched.
uint64_t address_space_beside_arenas(int threads);

// Host memory that a program takes beyond the 24 MiB that the reserve has for it. The first function counts
// it while the program runs, with its trace, the second while the program is planned. Planning ends before
// the arenas are filled.
uint64_t running_bytes_beside_reserve(const ProgramSize& size);
uint64_t planning_bytes_beside_reserve(std::span<const ProgramSize> sizes);

// The part of --host-mem that is left for texts which `threads` threads prepare or tokenize
// (models/prepare/record_memory.h), after what the process holds and what the threads need.
struct RecordBytes {
  uint64_t left = 0, taken = 0;  // left for records; taken by the process and its threads
};
RecordBytes bytes_for_records(const MemoryOptions& options, int threads);

// A host limit that is smaller than the reserve leaves an arena of 0 bytes; the planner's error then says
// which limit would do. A budget of the run that goes on (Size::of_run) gives way where this machine has
// less. Throws Error(environment) for any other budget above the free memory, or a directory that cannot
// serve. `check_free`: false for `plan`, which may ask about another machine. `sharers`: the ranks of this
// machine. `limits` are one rank's part of memory; the space of drives is divided by `sharers` in here.
// `drive_bytes`: the size of another machine's drives. Directories are not looked at if it is given, or if a
// plan has --nvme-mem in bytes.
Budgets resolve_budgets(const MemoryOptions& options, const MemoryLimits& limits, bool check_free,
                        const std::optional<AcceleratorUse>& accelerator = std::nullopt, int sharers = 1,
                        std::optional<uint64_t> drive_bytes = std::nullopt);

}  // namespace sluice
