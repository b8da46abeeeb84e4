// From options to what training works on: its data, the state before the first step, options of the session.
//
// The options' sequence is resolved. Callers: train and eval, tests, benchmarks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/execute/session.h"
#include "engine/run/options/options.h"
#include "engine/run/start/budgets.h"
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

  TrainData view() const { return {&train, order, validation ? &*validation : nullptr, validation_order}; }
};

// Throws as TokenData::open, make_data_order and make_validation_order do.
RunData open_run_data(const Options& options, const ModelConfig& config);

// Before step 1. What the plan settles and what the data are is left to the caller.
CheckpointState first_state(const Options& options, const ModelConfig& config);

SessionOptions session_options(const Options& options, int threads);

// Seconds that a rank waits for another: --rank-timeout, or by default ten predicted steps and the time that
// a slow disk takes for a rank's share of a checkpoint, at least a minute.
double rank_timeout(const Options& options, const Plan& plan);

struct PlannedSession {
  PlannedSession(Plan made, Device& device, const SessionOptions& options, PreparedDevice prepared)
      : plan(std::move(made)), session(plan, device, options, std::move(prepared)) {}
  Plan plan;
  Session session;
};

// Plans by `make_plan` and takes the memory. `planned` sees a plan before anything is allocated for it. The
// accelerator's comes first. Where it then holds more than its budget with its libraries and what page tables
// will take, or the host's arena no longer fits beside them, it is given back, the reserve becomes what they
// take, and all begins anew: the next plan keeps the budget, or make_plan throws that none can.
std::unique_ptr<PlannedSession> start_session(Device& device, Budgets& budgets, const SessionOptions& options,
                                              const std::function<Plan()>& make_plan,
                                              const std::function<void(const Plan&)>& planned);

}  // namespace sluice
