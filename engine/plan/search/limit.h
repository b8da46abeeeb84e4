// The lower bound: the time that a step takes at least, whatever lives where. Plans are held against it.
//
// 1. The work of every task is done once (nothing is made again). Tasks that may run on either of two lanes
//    are divided between these lanes, parts of tasks too, so that the later lane ends as early as possible.
// 2. Over the boundary below a tier, every wave of a step moves permanent buffers. Up: at any moment, tasks
//    of this tier or above still have to read some bytes before anything writes them anew. The largest number
//    of these bytes counts, less the capacity of these tiers, for the forward and for the backward of a wave.
//    Down: the bytes that these tasks write and that have content after the wave, less the same capacity.
//    Transient buffers might never leave, so they do not count.
// 3. The bound is the longest time that tasks and moves take on any lane, pool or drive, as if it were busy
//    at its full rate all of the time.
#pragma once

#include "engine/plan/lower/lower.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

// Returns seconds. The machine's tiers have the capacities of the arenas. `options` are the plan's.
// `segments` are as lower() takes them. With one wave, the result is a bound for any number of waves.
double least_step_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                          LowerOptions options, std::shared_ptr<const SegmentPlans> segments = nullptr);

// The bound that step 2 alone gives, for the options' number of waves.
double least_moving_seconds(const Machine& machine, const MachineRates& rates, const Model& model,
                            LowerOptions options, std::shared_ptr<const SegmentPlans> segments = nullptr);

}  // namespace sluice
