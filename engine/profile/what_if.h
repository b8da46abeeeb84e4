// How long a step would take with another budget, batch or option: plans again, with one thing changed.
//
// Plans are a function of their request, so `train` with that change would run the same plan. No arenas are
// allocated. For reports.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/profile/attribute.h"

namespace sluice {

struct Change {
  enum class Kind : uint8_t { capacity, batch, recompute, clip, adapters };
  Kind kind = Kind::capacity;
  TierId tier = 0;            // capacity
  uint64_t from = 0, to = 0;  // bytes of an arena; sequences of a rank's batch; adapters: `to` is their rank
};

// Several amounts of one quantity, ascending.
using Amounts = std::vector<Change>;

// Returns the plan with a change; none: this plan does not fit. Throws Error where the change is refused.
using PlanWith = std::function<std::optional<Plan>(const Change&)>;

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

// For each quantity, returns the smallest amount that gains nearly as much as the largest that can be
// planned. An amount of memory is cut to what its plan takes, if a plan with the cut amount is nearly as
// fast. Quantities that gain less than a hundredth are left out. The changes are in order of tokens a second,
// the highest first. `plan` is the plan without a change.
std::vector<WhatIf> best_changes(const std::vector<Amounts>& quantities, const Plan& plan,
                                 const PlanWith& plan_with);

}  // namespace sluice
