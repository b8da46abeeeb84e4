// How long a step would take with another budget or batch: plans again with a request that differs in one
// thing.
//
// Plans are a function of their request, so `train` with that change would run the same plan. No arenas are
// allocated. For reports.
#pragma once

#include <optional>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/profile/attribute.h"

namespace sluice {

struct Change {
  enum class Kind : uint8_t { capacity, batch, recompute };
  Kind kind = Kind::capacity;
  TierId tier = 0;            // capacity
  uint64_t from = 0, to = 0;  // bytes of an arena; sequences of a rank's batch
};

// The request with the change. `micro_batch` is as in BatchOptions; none: the planner chooses.
PlanRequest with_change(PlanRequest request, const Change& change, std::optional<int64_t> micro_batch,
                        int64_t sequence);

// Tokens of a step, over all ranks.
double tokens_of(const Plan& plan);

struct Outlook {
  double step_seconds = 0;         // predicted, as Plan's
  double tokens_per_second = 0;    // of all ranks
  std::vector<WorkSeconds> waits;  // of the compute lane in a step, by kind, most first
};

Outlook outlook_of(const Plan& plan);

struct WhatIf {
  Change change;
  Outlook outlook;
};

// Tries more device and host memory, more sequences unless the batch is kept, and --recompute auto. For each
// of these returns the smallest change that gains nearly as much as the largest that fits, and of memory only
// what its plan takes where that is nearly as fast; most tokens a second first. Those that gain less than a
// hundredth are left out. `plan` is the request's.
std::vector<WhatIf> best_changes(const PlanRequest& request, const Plan& plan,
                                 std::optional<int64_t> micro_batch, bool keeps_batch);

}  // namespace sluice
