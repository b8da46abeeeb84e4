#include "tools/train/comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"

namespace sluice {

namespace {

constexpr double kNear = 1.1;       // up to this times the prediction, no lane is blamed
constexpr double kOther = 1.25;     // beyond this factor, up or down, rates are another machine's
constexpr double kPartNamed = 0.1;  // of a step: a lane that is busy for less is not named

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Comparison::Comparison(const Plan& plan, const PlanFacts& facts, const Options& options)
    : predicted_(plan.step_seconds),
      busy_(facts.busy),
      is_described_(!options.memory.machine.empty()),
      is_one_phase_(plan.lowering.phases.size() == 1),
      busy_samples_(busy_.size()) {
  for (const Lane& lane : plan.program.machine.lanes) lanes_.push_back(lane.name);
  seconds_.reserve(kSteps);
}

std::optional<std::string> Comparison::add(const StepMetrics& metrics) {
  if (!is_one_phase_ || ++steps_ > kSteps) return std::nullopt;
  if (steps_ > kWarm) {
    seconds_.push_back(metrics.seconds);
    for (size_t l = 0; l < busy_samples_.size(); ++l) busy_samples_[l].push_back(metrics.lane_busy[l].second);
  }
  return steps_ == kSteps ? std::optional(sentence()) : std::nullopt;
}

std::string Comparison::sentence() const {
  const double measured = median(seconds_), times = measured / predicted_;
  std::string out = fmt::format("After {} steps: {} a step, {:.2f} times the predicted {}.", kSteps,
                                readable_seconds(measured), times, readable_seconds(predicted_));
  if (times > kNear) {
    size_t slowest = busy_.size();
    double most = 0;  // seconds above the prediction
    for (size_t l = 0; l < busy_.size(); ++l) {
      const double busy = median(busy_samples_[l]);
      if (busy < kPartNamed * measured || busy - busy_[l] <= most) continue;
      most = busy - busy_[l];
      slowest = l;
    }
    if (slowest < busy_.size())
      out += fmt::format(" Lane {} is busy for {}; {} were predicted.", lanes_[slowest],
                         readable_seconds(busy_[slowest] + most), readable_seconds(busy_[slowest]));
  }
  const bool is_other = times > kOther || times < 1 / kOther;
  if (is_other && loss_) out += fmt::format(" A kill loses up to {} at this speed.", loss_->time(measured));
  if (!is_described_ && is_other)
    out += " Predictions are at another machine's rates: sluice bench measures this one, for --machine.";
  return out;
}

}  // namespace sluice
