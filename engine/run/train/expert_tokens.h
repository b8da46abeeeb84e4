// Tokens by expert and layer of a step, as its routers counted them, and how many choices experts dropped:
// the outputs "experts.i" of a model with a mixture of experts (models/families/decoder.h). Owner: the
// trainer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/run/execute/session.h"
#include "engine/run/train/metrics.h"

namespace sluice {

class ExpertTokens {
 public:
  explicit ExpertTokens(Session& session);

  // Adds what this rank's routers counted in a wave. The wave must have run, and its slots of kWaveRing, at
  // `position`, must still have the wave's content.
  void add_wave(uint64_t position);
  // Ends a step: the sums of all ranks, by layer with experts. The trainers of all ranks call it.
  const std::vector<LayerTokens>& end_step();
  // The first layer whose router had a logit that is NaN or too large, in the step that end_step() ended
  // last.
  std::optional<int64_t> not_finite() const { return not_finite_; }

 private:
  Session& session_;
  std::vector<BufferId> outputs_;  // by layer with experts
  std::vector<uint64_t> counts_;   // of the step so far, by layer with experts: choices by expert, choices
                                   // taken, micro-batches that were not finite
  std::vector<LayerTokens> layers_;
  std::optional<int64_t> not_finite_;
};

}  // namespace sluice
