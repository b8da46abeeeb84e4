// How long a run takes to stop, as predicted. Callers: train, plan.
#pragma once

#include <optional>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"

namespace sluice {

// Seconds. `checkpoint`: from the end of a step until its checkpoint is written. `longest`: the most from a
// signal to the end of the run.
struct StopTime {
  double checkpoint = 0, longest = 0;
};
// None where the machine description has no rate at which checkpoints are written.
std::optional<StopTime> stop_time(const Plan& plan);

// Throws Error(infeasible) where a stop may take longer than --stop-within, or where that is not known.
void check_stop_time(const Options& options, const Plan& plan);

}  // namespace sluice
