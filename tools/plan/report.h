// What a plan is, for people and for programs.
#pragma once

#include <string>

#include "engine/plan/plan.h"
#include "engine/run/start/budgets.h"
#include "tools/plan/phases.h"

namespace sluice {

// What lives where, peaks against budgets, bytes moved per lane and step, predicted step. `options`, here and
// below, name the settled device; `even` is of compressed gradients, if that is of interest.
std::string plan_text(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even = {});

// The facts of `plan --json`, one object.
std::string plan_json(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even = {});
std::string infeasible_json(const PlanRequest& request, const Infeasible& why, const Budgets& budgets,
                            const Options& options);

}  // namespace sluice
