// A plan as text and as JSON.
#pragma once

#include <string>

#include "engine/plan/plan.h"
#include "engine/run/start/budgets.h"
#include "tools/plan/phases.h"

namespace sluice {

// What lives where, peaks against budgets, bytes that each lane moves in a step, and the predicted step. Here
// and below, the device in `options` is settled; `even` is given where gradients are compressed.
std::string plan_text(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even = {});

// The facts of `plan --json`, one object.
std::string plan_json(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even = {});
std::string infeasible_json(const PlanRequest& request, const Infeasible& why, const Budgets& budgets,
                            const Options& options);

}  // namespace sluice
