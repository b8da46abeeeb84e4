// A request becomes a verified plan, or the error that says which budgets would do.
#pragma once

#include <variant>

#include "engine/base/error.h"
#include "engine/plan/plan.h"
#include "engine/run/ranks/ranks.h"
#include "engine/run/start/budgets.h"

namespace sluice {

// Plans within the budgets that the request was made for. Page tables of pinned host memory take device
// memory. If page tables for the whole host budget leave too little of it, the plan gets less host memory, so
// that enough is left. So a larger budget never refuses what a smaller one allows.
std::variant<Plan, Infeasible> plan_within(const PlanRequest& request, const Budgets& budgets);

// Plans and verifies. Throws infeasible_error(), which has exit code `infeasible`.
Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets);

// A rank's plan, in the shape of the first rank's own plan. Budgets and rates may differ by rank. Collective.
Plan plan_alike(const PlanRequest& request, const Budgets& budgets, const Ranks& ranks, Plan own);

// CHECKs that the plan's program is correct, alone and among its ranks.
void check_program(const Plan& plan);

Error infeasible_error(const PlanRequest& request, const Infeasible& why, const Budgets& budgets);

// The error, with options added that work within the request's budgets: the longest sequence of those tried,
// micro-batch 1, the largest part of the batch. Plans some tens of times, for the least memory only.
Error with_less_work(const Error& error, const PlanRequest& request);

}  // namespace sluice
