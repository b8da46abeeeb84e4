// The least that a step can take, whatever lives where: what to hold a plan, or a run, against.
//
// 1. Every task's work is done, none of it twice (nothing is recomputed). Tasks that may run on either of two
//    lanes are divided between these, parts of tasks too, so that the later one is done soonest.
// 2. Between a tier and those below it, a step moves what must be visited in or above it beyond what fits
//    there: once up, and of what is written there as much down again. (Of permanent buffers; what tasks hand
//    each other might never leave.)
// 3. The least is the largest time that this takes of any lane, pool or drive at its full rate, as if all
//    were busy all of the time.
// Called by the planner's door; any thread.
#pragma once

#include "engine/plan/lower/lower.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

// Seconds; capacities of the machine's tiers are those of the arenas, `options` those of the plan.
double least_step_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                          LowerOptions options);

}  // namespace sluice
