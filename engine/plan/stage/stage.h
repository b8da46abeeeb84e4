// Stages and lays out one tier of one body. Every use of a range whose home is elsewhere becomes an
// allocation in this tier. If the home is below, transfers go over the links to the tier below, and are then
// uses of that tier. If the home is above, which permanent buffers alone can have, transfers go to and from
// the home itself. A transient buffer whose home is this tier has one allocation for its whole life.
// Tiers are staged from the top down.
//
// 1. Collect the uses of each buffer in list order, and the accesses to it in the tier that it is staged from
//    (writes there make copies stale).
// 2. Every use gets an interval. A fetched interval begins earlier by tasks that cost `lead` together, while
//    memory lasts, so that its fetch overlaps something. An interval whose content another lane takes away
//    ends later by as much (its lag), so that what is made next need not wait for that lane.
// 3. A staged copy is kept over the gap to the next use that reads it, shortest gaps first, while memory
//    lasts (clairvoyant replacement: Belady 1966). Kept gaps join intervals into one allocation.
// 4. Offsets: by engine/base/pack.h, tried with both orders of PackOrder. An allocation that finds no hole
//    takes the place that costs the fewest leads, lags and kept gaps. If it has no place, 2 and 3 start over
//    without the leads, lags and gaps in its way. As the last resort there are no leads, lags and kept gaps,
//    and the layout ignores the capacity. So a body that fits a tier also fits a larger one.
// 5. Fetches grow backwards while their own byte range stays free (early prefetching: Cao, Felten, Karlin, Li
//    1995), and never pass a fetch that is needed earlier.
// 6. Emit the list. A fetch stands in front of its position. A write-back stands behind a write if another
//    allocation reads the content before the next write, and behind a body's last write of a permanent buffer
//    that has content after the body.
#pragma once

#include <optional>
#include <span>

#include "engine/plan/stage/notes.h"
#include "engine/program/program.h"

namespace sluice {

struct StageOptions {
  TierId tier = 0;
  uint64_t base = 0;                          // permanent homes end here; at most capacity
  uint64_t capacity = 0;                      // arena bytes
  uint32_t lead = 0;                          // and lag, in costs of tasks
  std::span<const uint32_t> task_costs = {};  // by task; empty: each costs 1
  bool keep = true;  // false: no copy outlives its use; with lead 0: the arrangement that needs least memory
  // Transfers of permanent buffers are left out. The result tells the peaks of transient buffers; it cannot
  // run.
  bool transient_only = false;
  FetchNotes* notes = nullptr;  // its last body gets the notes; null: nothing is noted
};

struct Shortage {  // why a tier cannot hold a body
  TierId tier = 0;
  uint32_t task = kNoTask;    // the task (of the body) that needs most, if known
  uint64_t bytes_needed = 0;  // including permanent homes
};

// Alignment of whole allocations in a tier: the largest among the tier's own and those of the links that
// touch it.
uint64_t placement_alignment(const Machine& machine, TierId tier);

// The lowest tier whose bytes a processor can address, and the lowest tier of all.
TierId lowest_memory_tier(const Machine& machine);
TierId lowest_tier(const Machine& machine);

// Each place of the body's tasks and transfers has a tier, and a place in `tier` gets its offset here.
// Transfers are inserted between `tier` and the tier below or, for a buffer whose home is above, between
// `tier` and that home. Sets peak_bytes[tier]. Nothing is changed when a shortage is returned.
std::optional<Shortage> stage(const Program& program, Body& body, const StageOptions& options);

}  // namespace sluice
