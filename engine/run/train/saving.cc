#include "engine/run/train/saving.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double seconds_between(const Interval& every, double checkpoint) {
  if (!every.is_auto) return every.seconds;
  return std::max(kSavingSeconds, checkpoint * (1 - kSavingPart) / kSavingPart);
}

double Saving::mean_step() const {
  return steps == 0 ? step_seconds : step_seconds + save_seconds / static_cast<double>(steps);
}

double Saving::run_seconds(int64_t count) const {
  const int64_t between = steps == 0 ? count : steps,
                saves = (count + between - 1) / std::max<int64_t>(between, 1);
  return static_cast<double>(count) * step_seconds + static_cast<double>(saves) * save_seconds;
}

Saving saving_of(const Interval& every, double step, double checkpoint) {
  Saving saving{every.steps, step, checkpoint};
  constexpr double kStepsMost = 1e15;  // if steps are predicted to take no time
  if (const double seconds = seconds_between(every, checkpoint); seconds > 0)
    saving.steps =
        static_cast<int64_t>(std::clamp(std::ceil(seconds / std::max(step, 1e-12)), 1.0, kStepsMost));
  return saving;
}

}  // namespace sluice
