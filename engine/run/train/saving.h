// How often a run is saved, and what that costs. Callers: the trainer; train and plan, which print it.
#pragma once

#include <cstdint>

#include "engine/run/options/options.h"

namespace sluice {

// --checkpoint-every auto: checkpoints take at most kSavingPart of a run, and at least kSavingSeconds lie
// between two of them. A run shorter than kSavingSeconds is saved at its end only.
constexpr double kSavingPart = 0.03, kSavingSeconds = 1800;

// Seconds from the end of a checkpoint until the next is due, where writing one takes `checkpoint` seconds;
// 0: the interval is not a time.
double seconds_between(const Interval& every, double checkpoint);

struct Saving {
  int64_t steps = 0;        // between two checkpoints; 0: only at the end
  double step_seconds = 0;  // of a step alone
  double save_seconds = 0;  // of a checkpoint
  double seconds() const { return static_cast<double>(steps) * step_seconds; }
  // Seconds of a step together with its part of the checkpoints.
  double mean_step() const;
  // Seconds of `count` steps with their checkpoints, including the checkpoint at the end.
  double run_seconds(int64_t count) const;
};
// Steps take `step` seconds each. If the interval is a time, a checkpoint comes after the step in which it is
// due.
Saving saving_of(const Interval& every, double step, double checkpoint);

}  // namespace sluice
