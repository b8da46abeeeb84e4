// What a run says of its routers, each sentence once: that nearly all tokens choose one expert, and that
// experts have had no token for a long time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/train/metrics.h"

namespace sluice {

class RouterWatch {
 public:
  struct Run {
    int64_t tokens;          // of a step, padding included
    double router_loss = 0;  // the factor of the routers' loss; 0: it does not count
    double capacity = 0;     // the experts' capacity factor; 0: they take all
    bool frozen = false;     // routers are not trained
  };
  explicit RouterWatch(const Run& run) : run_(run), tokens_(static_cast<double>(run.tokens)) {}

  // Sentences, or nothing.
  std::optional<std::string> add(const StepMetrics& metrics);

 private:
  // A router is uneven where an expert's share of the tokens, over kStepsCounted steps, is above the middle
  // between an even share and all. With 8 experts of which a token uses 2, that is 62.5 %.
  static constexpr int64_t kStepsCounted = 10;
  static constexpr int64_t kStepsIdle = 100;

  std::optional<std::string> uneven() const;
  std::optional<std::string> idle() const;
  std::string remedy() const;
  void begin_to_count();

  Run run_;
  double tokens_;
  int64_t steps_ = 0;
  std::vector<LayerTokens> counted_;  // sums since the last multiple of kStepsCounted
  std::vector<LayerTokens> idle_;     // steps since the expert had its last token
  bool told_uneven_ = false, told_idle_ = false;
};

}  // namespace sluice
