// Compares the seconds of the first steps of a run with the prediction, and says which lane is to blame.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/train/metrics.h"
#include "tools/plan/facts.h"
#include "tools/train/kill_loss.h"

namespace sluice {

class Comparison {
 public:
  Comparison(const Plan& plan, const PlanFacts& facts, const Options& options);

  // If steps take much more or less time than predicted, the sentence also says how much time a kill loses.
  void tell_loss(KillLoss loss) { loss_ = std::move(loss); }

  // Returns a sentence after the kSteps-th step, nothing after other steps.
  std::optional<std::string> add(const StepMetrics& metrics);

 private:
  static constexpr size_t kSteps = 20, kWarm = 2;  // the first kWarm steps are not counted

  std::string sentence() const;

  double predicted_;          // seconds of a step
  std::vector<double> busy_;  // by lane, predicted
  bool is_described_;         // the machine was named
  bool is_one_phase_;         // all steps are like the predicted step
  std::optional<KillLoss> loss_;
  size_t steps_ = 0;
  std::vector<double> seconds_;                    // of the steps that count
  std::vector<std::vector<double>> busy_samples_;  // by lane, of the same steps
  std::vector<std::string> lanes_;
};

}  // namespace sluice
