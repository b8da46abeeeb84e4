// How unevenly tokens chose experts in steps that ran, in the measure of predictions
// (engine/graph/imbalance.h).
// Pure functions; callers: plan, profile.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/run/train/metrics.h"

namespace sluice {

// The tokens of a layer's largest expert in a step, over the mean of all experts; 1: there are no tokens.
double imbalance_of(const LayerTokens& layer);

// The mean over steps and layers; none: no step has a layer with experts.
std::optional<double> measured_imbalance(std::span<const StepMetrics> steps);

// The mean imbalance of the last steps in a metrics file, at most kStepsMeasured.
struct ImbalanceOfRun {
  double imbalance = 1;
  int64_t first = 0, last = 0;  // steps
};
constexpr size_t kStepsMeasured = 100;
// None: the file is missing, or has no steps of a model with experts. Throws as read_metrics() does.
std::optional<ImbalanceOfRun> imbalance_of_run(const std::string& metrics);

}  // namespace sluice
