// What a plan is, for people and for programs. Set-up code, any thread.
#pragma once

#include <string>

#include "engine/plan/plan.h"
#include "engine/run/budgets.h"

namespace sluice {

// What lives where, peaks against budgets, bytes moved per lane and step, predicted step. `options`, here and
// below, name the settled device.
std::string plan_text(const Plan& plan, const Budgets& budgets, const Options& options);

// The facts of `plan --json`, one object.
std::string plan_json(const Plan& plan, const Budgets& budgets, const Options& options);
std::string infeasible_json(const PlanRequest& request, const Infeasible& why, const Budgets& budgets,
                            const Options& options);

}  // namespace sluice
