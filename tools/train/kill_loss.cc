#include "tools/train/kill_loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "engine/run/train/saving.h"
#include "tools/command/progress.h"

namespace sluice {

bool KillLoss::saves_on_the_way(double step_seconds) const {
  const int64_t between = saving_of(every, validated * step_seconds, save_seconds).steps;
  return between > 0 && between < steps && no_room.empty();
}

// A checkpoint that is due begins after the step under way, and counts when it is written.
double KillLoss::seconds(double step_seconds) const {
  const double step = validated * step_seconds;
  if (!saves_on_the_way(step_seconds)) return static_cast<double>(steps) * step;
  return std::max(seconds_between(every, save_seconds), saving_of(every, step, save_seconds).seconds()) +
         step + save_seconds;
}

std::string KillLoss::time(double step_seconds) const {
  return format_duration(std::max(seconds(step_seconds), 1.0));
}

std::string KillLoss::words(double step_seconds, const std::string& basis) const {
  const Saving saving = saving_of(every, validated * step_seconds, save_seconds);
  const std::string loss = time(step_seconds) + ", " + basis;
  if (!saves_on_the_way(step_seconds)) {
    const std::string why = saving.steps == 0
                                ? "--checkpoint-every 0 saves the run only at its end and at a stop"
                            : saving.steps >= steps ? "the run is saved at its end and at a stop"
                                                    : no_room;
    return fmt::format("a kill loses all since the start, up to {}: {}", loss, why);
  }
  const double between = seconds_between(every, save_seconds);
  const std::string interval = between > 0         ? format_duration(between)
                               : saving.steps == 1 ? "step"
                                                   : fmt::format("{} steps", saving.steps);
  return fmt::format("a kill loses up to {}: a checkpoint is written every {}, in {}", loss, interval,
                     readable_seconds(save_seconds));
}

}  // namespace sluice
