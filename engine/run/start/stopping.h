// How long a run takes to stop, as predicted. Callers: train, plan.
#pragma once

#include <optional>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/train/saving.h"
#include "engine/run/train/stop_forecast.h"

namespace sluice {

// Seconds. `checkpoint`: from the end of a step until its checkpoint is written. `drain`: the part of
// `checkpoint` in which the update ends. `longest`: the longest time from a signal to the end of the run.
struct StopTime {
  double checkpoint = 0, longest = 0, drain = 0;
};
// None where the machine description has no rate at which checkpoints are written.
std::optional<StopTime> stop_time(const Plan& plan);

// The parts of a stop. `rate`: measured bytes a second of the drive of --out; 0: not measured. A checkpoint
// takes its predicted time, or the time of its node's part at `rate` if that is longer.
StopParts stop_parts(const Options& options, const Plan& plan, double rate);

// What --checkpoint-every means for the plan's run. Checkpoints cost nothing where stop_time() is not known.
Saving predicted_saving(const Options& options, const Plan& plan);

// Throws Error(infeasible) where a stop may take longer than --stop-within, or where that is not known.
void check_stop_time(const Options& options, const Plan& plan);

}  // namespace sluice
