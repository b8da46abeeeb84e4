// A request becomes a verified plan, or the error that says which budgets would do.
#pragma once

#include <variant>

#include "engine/base/error.h"
#include "engine/plan/plan.h"
#include "engine/run/ranks/ranks.h"
#include "engine/run/start/budgets.h"

namespace sluice {

// Plans within the budgets that the request was made for. Page tables of pinned host memory take device
// memory: where those of the whole host budget leave too little there, the plan has as much host memory as
// leaves what it needs. So a larger budget never refuses what a smaller one allows.
std::variant<Plan, Infeasible> plan_within(const PlanRequest& request, const Budgets& budgets);

// Plans and verifies. Throws infeasible_error(), which has exit code `infeasible`.
Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets);

// The plan of a rank, whose budgets and rates may differ from those of others: it has the shape that the
// first rank's own plan has. Collective.
Plan plan_alike(const PlanRequest& request, const Budgets& budgets, const Ranks& ranks, Plan own);

// CHECKs that the plan's program is correct, alone and among its ranks.
void check_program(const Plan& plan);

Error infeasible_error(const PlanRequest& request, const Infeasible& why, const Budgets& budgets);

// The error, with the longest sequence of those tried, the smaller micro-batch and the larger part of the
// batch that work within the request's budgets. Plans some tens of times, for its least memory only.
Error with_less_work(const Error& error, const PlanRequest& request);

}  // namespace sluice
