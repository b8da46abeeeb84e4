#include "engine/run/train/measured_imbalance.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <numeric>

#include "engine/run/train/metrics_reader.h"

namespace sluice {

double imbalance_of(const LayerTokens& layer) {
  const uint64_t all = std::accumulate(layer.tokens.begin(), layer.tokens.end(), uint64_t{0});
  if (all == 0) return 1;
  const auto most = static_cast<double>(*std::ranges::max_element(layer.tokens));
  return most * static_cast<double>(layer.tokens.size()) / static_cast<double>(all);
}

std::optional<double> measured_imbalance(std::span<const StepMetrics> steps) {
  double sum = 0;
  size_t count = 0;
  for (const StepMetrics& step : steps)
    for (const LayerTokens& layer : step.expert_tokens) {
      sum += imbalance_of(layer);
      ++count;
    }
  if (count == 0) return {};
  return sum / static_cast<double>(count);
}

std::optional<ImbalanceOfRun> imbalance_of_run(const std::string& metrics) {
  std::error_code ignored;
  if (!std::filesystem::exists(metrics, ignored)) return {};
  struct Step {
    int64_t step;
    double imbalance;
  };
  std::deque<Step> last;
  const auto add = [&](const StepMetrics& m) {
    const std::optional<double> imbalance = measured_imbalance({&m, 1});
    if (!imbalance) return;
    last.push_back({m.step, *imbalance});
    if (last.size() > kStepsMeasured) last.pop_front();
  };
  read_metrics(metrics, {.step = add, .validation = [](const ValidationMetrics&) {}});
  if (last.empty()) return {};
  double sum = 0;
  for (const Step& s : last) sum += s.imbalance;
  return ImbalanceOfRun{sum / static_cast<double>(last.size()), last.front().step, last.back().step};
}

}  // namespace sluice
