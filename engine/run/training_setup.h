// From options to what training works on: its data, the state before the first step, options of the session.
//
// The options' sequence is resolved. Callers: train and eval, tests, benchmarks; set-up code.
#pragma once

#include <optional>

#include "engine/run/checkpoint.h"
#include "engine/run/options.h"
#include "engine/run/session.h"
#include "engine/run/trainer.h"
#include "models/config.h"
#include "models/data_order.h"
#include "models/token_data.h"

namespace sluice {

struct RunData {
  TokenData train;
  DataOrder order;
  std::optional<TokenData> validation;
  DataOrder validation_order;

  TrainData view() const { return {&train, order, validation ? &*validation : nullptr, validation_order}; }
};

// Throws as TokenData::open, make_data_order and make_validation_order do.
RunData open_run_data(const Options& options, const ModelConfig& config);

// Before step 1. What the plan settles and what the data are is left to the caller.
CheckpointState first_state(const Options& options, const ModelConfig& config);

SessionOptions session_options(const Options& options, int threads);

}  // namespace sluice
