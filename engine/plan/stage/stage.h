// Stage and lay out one tier of one body: every use of a range whose home is elsewhere becomes an allocation
// in this tier. A home below: with transfers on the links to the tier below, which are then uses of that
// tier. A home above, which only permanent buffers have: with transfers to and from the home itself. A
// transient buffer whose home the tier is has one allocation for its whole life. Tiers are staged from the
// top down.
//
// 1. Uses of each buffer in list order, with what happens to it where it is staged from (writes there make
//    copies stale).
// 2. Every use gets an interval; a fetched one is lengthened by tasks that cost `lead` together, while
//    memory lasts, so that its fetch overlaps something.
// 3. A staged copy is kept over the gap to the next use that reads it, shortest gaps first, while memory
//    lasts (clairvoyant replacement: Belady 1966). Kept gaps join intervals into one allocation.
// 4. Offsets: largest first, tightest hole. What then has no place gets one where the least must be given up
//    of the leads and kept gaps that are in its way. If there is none, 2 and 3 start over without any of
//    them; at last nothing is kept and nothing leads, laid out without looking at the capacity, so that
//    whether a tier can hold a body is monotone in it.
// 5. Fetches grow backwards while their own byte range stays free (early prefetching: Cao, Felten, Karlin, Li
//    1995), and never pass a fetch that is needed earlier.
// 6. Emit: fetches in front of their position, stores behind the last write before anybody elsewhere or later
//    reads.
#pragma once

#include <optional>
#include <span>

#include "engine/plan/stage/notes.h"
#include "engine/program/program.h"

namespace sluice {

struct StageOptions {
  TierId tier = 0;
  uint64_t base = 0;                            // permanent homes end here; at most capacity
  uint64_t capacity = 0;                        // arena bytes
  uint32_t lead = 0;                            // in costs of tasks
  std::span<const uint32_t> task_costs = {};  // by task; empty: each costs 1
  bool keep = true;  // false: no copy outlives its use; with lead 0 the least that the tier can do with
  bool transient_only = false;  // nothing permanent is carried: peaks of transient buffers, and no program
  FetchNotes* notes = nullptr;  // adds to the body at its end; null: nothing is noted
};

struct Shortage {  // why a tier cannot hold a body
  TierId tier = 0;
  uint32_t task = kNoTask;    // the task (of the body) that needs most, if known
  uint64_t bytes_needed = 0;  // with permanent homes
};

// Alignment of whole allocations in a tier: its own, and that of the links that touch it.
uint64_t placement_alignment(const Machine& machine, TierId tier);

// The lowest tier whose bytes a processor can address, and the lowest tier of all.
TierId lowest_memory_tier(const Machine& machine);
TierId lowest_tier(const Machine& machine);

// Body::instructions hold tasks and transfers whose places name tiers; those in `tier` get their offsets
// here, and transfers to and from the tier below are inserted. Sets peak_bytes[tier]. Nothing is changed when
// a shortage is returned.
std::optional<Shortage> stage(const Program& program, Body& body, const StageOptions& options);

}  // namespace sluice
