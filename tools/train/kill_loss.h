// What a run would lose if it were killed, or its power failed. Callers: train, before the first step, and
// the comparison of the first steps with the prediction.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/options/options.h"

namespace sluice {

struct KillLoss {
  Interval every;           // --checkpoint-every
  double save_seconds = 0;  // of a checkpoint, as predicted
  double validated = 1;     // a step's seconds with its share of validations, divided by its seconds without
  int64_t steps = 0;        // of the run that are left
  std::string no_room;      // why nothing is written on the way, a clause; empty: there is room

  // Seconds of work that a kill at the worst moment loses, if a step takes `step_seconds`.
  double seconds(double step_seconds) const;
  // seconds() in words, but at least one second: less would sound as if nothing could be lost.
  std::string time(double step_seconds) const;
  // A clause that begins with "a kill loses". `basis`: what step_seconds rests on, such as "as predicted".
  std::string words(double step_seconds, const std::string& basis) const;

 private:
  bool saves_on_the_way(double step_seconds) const;
};

}  // namespace sluice
