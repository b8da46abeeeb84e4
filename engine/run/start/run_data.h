// The tokens that a run trains and validates on, and their order. Callers: train, eval, profile.
#pragma once

#include <optional>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/options/options.h"
#include "engine/run/train/trainer.h"
#include "models/data/data_order.h"
#include "models/data/token_data.h"
#include "models/families/config.h"

namespace sluice {

struct RunData {
  TokenData train;
  DataOrder order;
  std::optional<TokenData> validation;
  DataOrder validation_order;

  std::vector<const TokenData*> all() const;
  TrainData view() const { return {&train, order, validation ? &*validation : nullptr, validation_order}; }
};

// The options' sequence is resolved. Throws as TokenData::open, make_data_order and make_validation_order do.
RunData open_run_data(const Options& options, const ModelConfig& config);

// Throws Error(usage) for data other than the run's. The order of windows, and so every bit, depends on them.
void check_same_data(const CheckpointState& run, const TokenData& data);

}  // namespace sluice
