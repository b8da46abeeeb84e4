#include "engine/run/train/schedule.h"

#include <cmath>
#include <numbers>

namespace sluice {

double minimum_learning_rate(const OptimizerOptions& options) {
  return options.min_learning_rate.value_or(options.learning_rate / 10);
}

int64_t warmup_steps(const OptimizerOptions& options, int64_t steps) {
  const StepsOrShare& warmup = options.warmup;
  if (warmup.percent == 0) return warmup.steps;
  return static_cast<int64_t>(std::ceil(warmup.percent / 100 * static_cast<double>(steps)));
}

double learning_rate(const OptimizerOptions& options, int64_t step, int64_t steps) {
  const double top = options.learning_rate;
  const int64_t warmup = warmup_steps(options, steps);
  if (step < warmup) return top * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (options.schedule == Schedule::constant) return top;
  const double floor = minimum_learning_rate(options);
  if (step >= steps) return floor;
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  if (options.schedule == Schedule::linear) return top + (floor - top) * progress;
  return floor + (top - floor) / 2 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace sluice
