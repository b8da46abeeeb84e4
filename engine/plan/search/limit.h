// The lower bound: the time that a step takes at least, whatever lives where. Plans are held against it.
//
// 1. Every task's work is done, none of it twice (nothing is made again). Tasks that may run on either of two
//    lanes are divided between these, parts of tasks too, so that the lane that ends last ends soonest.
// 2. Over the boundary below a tier, every wave of a step moves permanent buffers. Up: the bytes that tasks
//    of this tier or above still have to read before anything writes them anew, at the moment when these are
//    most, less the capacity of these tiers; the forward and the backward of a wave each have such a moment.
//    Down: the bytes that these tasks write and that have content after the wave, less the same capacity.
//    Transient buffers might never leave, so they do not count.
// 3. The bound is the longest time that tasks and moves take on any lane, pool or drive at its full rate, as
//    if all were busy all of the time.
#pragma once

#include "engine/plan/lower/lower.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

// Seconds; capacities of the machine's tiers are those of the arenas, `options` those of the plan, `segments`
// as lower() has them. With one wave, the result is a bound for any number of waves.
double least_step_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                          LowerOptions options, std::shared_ptr<const SegmentPlans> segments = nullptr);

// The bound by step 2 alone, for the options' number of waves.
double least_moving_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                            LowerOptions options, std::shared_ptr<const SegmentPlans> segments = nullptr);

}  // namespace sluice
