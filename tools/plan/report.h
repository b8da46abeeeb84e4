// A plan as text and as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "engine/plan/plan.h"
#include "engine/run/start/budgets.h"
#include "tools/plan/phases.h"

namespace sluice {

// What lives where, peaks against budgets, bytes that each lane moves in a step, and the predicted step. Here
// and below, the device in `options` is settled; `even` is given where gradients are compressed.
std::string plan_text(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even = {});

// "1 sequence", "3 sequences".
std::string counted(int64_t count, const char* one, const char* several);

// Lines of plan_text: the device and whose rates are taken; what lives where, and the arenas against budgets.
std::string device_text(const Plan& plan, const Options& options);
std::string memory_text(const Plan& plan, const Budgets& budgets);

// The facts of `plan --json`, one object.
std::string plan_json(const Plan& plan, const Budgets& budgets, const Options& options,
                      const std::optional<BreakEven>& even = {});
std::string infeasible_json(const PlanRequest& request, const Infeasible& why, const Budgets& budgets,
                            const Options& options);

}  // namespace sluice
