#include "tools/train/router_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sluice {

std::optional<std::string> RouterWatch::add(const StepMetrics& metrics) {
  const std::vector<LayerTokens>& layers = metrics.expert_tokens;
  if (layers.empty()) return std::nullopt;
  if (counted_.empty()) {
    counted_ = layers;
    begin_to_count();
    idle_ = counted_;
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t e = 0; e < layers[l].tokens.size(); ++e) {
      const uint64_t tokens = layers[l].tokens[e];
      counted_[l].tokens[e] += tokens;
      idle_[l].tokens[e] = tokens > 0 ? 0 : idle_[l].tokens[e] + 1;
    }
    if (layers[l].dropped) *counted_[l].dropped += *layers[l].dropped;
  }
  std::optional<std::string> sentences;
  if (++steps_ % kStepsCounted == 0) {
    if (!told_uneven_) sentences = uneven();
    if (sentences) told_uneven_ = true;
    begin_to_count();
  }
  if (sentences || told_idle_) return sentences;
  sentences = idle();
  if (sentences) told_idle_ = true;
  return sentences;
}

void RouterWatch::begin_to_count() {
  for (LayerTokens& of : counted_) {
    std::ranges::fill(of.tokens, 0);
    if (of.dropped) of.dropped = 0;
  }
}

std::string RouterWatch::remedy() const {
  if (run_.frozen) return "Routers are frozen in this run, so it cannot change that";
  if (run_.router_loss > 0)
    return fmt::format("A new run with --router-loss above {} spreads tokens", run_.router_loss);
  return "The routers' loss does not count here: a new run with --router-loss spreads tokens";
}

// The worst layer decides.
std::optional<std::string> RouterWatch::uneven() const {
  double worst = 0, worst_share = 0, worst_even = 0, dropped = 0;
  int64_t layer = 0, expert = 0, others = -1;
  for (const LayerTokens& of : counted_) {
    const double tokens = tokens_ * static_cast<double>(kStepsCounted);
    const auto choices = static_cast<double>(std::reduce(of.tokens.begin(), of.tokens.end()));
    const double even = choices / tokens / static_cast<double>(of.tokens.size());
    const auto most = std::ranges::max_element(of.tokens);
    const double share = static_cast<double>(*most) / tokens;
    if (even >= 1 || share <= (1 + even) / 2) continue;
    ++others;
    const double part = (share - even) / (1 - even);
    if (part <= worst) continue;
    worst = part, worst_share = share, worst_even = even;
    layer = of.layer, expert = most - of.tokens.begin();
    dropped = static_cast<double>(of.dropped.value_or(0)) / choices;
  }
  if (worst == 0) return std::nullopt;
  const std::string follows =
      run_.capacity > 0
          ? fmt::format(
                "An expert takes {:.4g} times its even share: no expert took {:.0f} % of this layer's "
                "choices.",
                run_.capacity, 100 * dropped)
          : "Memory is planned for that, but while one expert computes for long, the next ones wait, "
            "and most learn little.";
  return fmt::format(
      "The router of layer {} sends {:.0f} % of the tokens to expert {}; {:.1f} % would be even.{} {} {}.",
      layer, 100 * worst_share, expert, 100 * worst_even,
      others == 0 ? "" : fmt::format(" So does the router of {} of the other layers.", others), follows,
      remedy());
}

// A sentence once the first expert has been idle for kStepsIdle steps.
std::optional<std::string> RouterWatch::idle() const {
  const auto of_layer = [](const LayerTokens& of) {
    return std::ranges::count_if(of.tokens, [](uint64_t steps) { return steps >= kStepsIdle; });
  };
  int64_t idle = 0, experts = 0, layers = 0;
  for (const LayerTokens& of : idle_) {
    idle += of_layer(of);
    experts += static_cast<int64_t>(of.tokens.size());
    layers += of_layer(of) > 0;
  }
  if (idle == 0) return std::nullopt;
  return fmt::format(
      "{} of {} experts, in {} of {} layers, had no token in the last {} steps: they only decay. {}; "
      "expert_tokens in the metrics file tells which they are.",
      idle, experts, layers, idle_.size(), kStepsIdle, remedy());
}

}  // namespace sluice
