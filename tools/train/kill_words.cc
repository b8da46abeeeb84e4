#include "tools/train/kill_words.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "tools/command/progress.h"

namespace sluice {

namespace {

// At least a second: less would sound as if nothing could be lost.
std::string at_least_a_second(double seconds) { return format_duration(std::max(seconds, 1.0)); }

}  // namespace

std::string kill_words(const Interval& every, const Saving& saving, int64_t steps,
                       const std::string& no_room) {
  const double whole = static_cast<double>(steps) * saving.step_seconds;
  const bool comes = saving.steps > 0 && saving.steps < steps;
  if (!comes || !no_room.empty()) {
    const std::string loss =
        fmt::format("a kill loses all since the start, at most {} as predicted: ", at_least_a_second(whole));
    if (comes) return loss + no_room;
    return loss + (saving.steps > 0 ? "the run is saved at its end and at a stop"
                                    : "--checkpoint-every 0 saves the run only at its end and at a stop");
  }
  // The checkpoint that is due comes after the step under way, and counts when it is written.
  const double between = seconds_between(every, saving.save_seconds),
               most = std::max(between, saving.seconds()) + saving.step_seconds + saving.save_seconds;
  const std::string interval = between > 0         ? format_duration(between)
                               : saving.steps == 1 ? "step"
                                                   : fmt::format("{} steps", saving.steps);
  return fmt::format("a kill loses at most {} as predicted: a checkpoint is written every {}, in {}",
                     at_least_a_second(most), interval, readable_seconds(saving.save_seconds));
}

}  // namespace sluice
