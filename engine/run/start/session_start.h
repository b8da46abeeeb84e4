// Takes a plan's memory and makes the session that runs it. Callers: train, eval, profile, tests, benchmarks.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "engine/plan/plan.h"
#include "engine/run/execute/session.h"
#include "engine/run/options/options.h"
#include "engine/run/start/budgets.h"

namespace sluice {

SessionOptions session_options(const Options& options, int threads);

// Seconds that a rank waits for another: --rank-timeout. By default ten predicted steps and the time in which
// a slow drive writes a rank's share of a checkpoint, and at least a minute.
double rank_timeout(const Options& options, const Plan& plan);

struct PlannedSession {
  PlannedSession(Plan made, Device& device, const SessionOptions& options, PreparedDevice prepared)
      : plan(std::move(made)), session(plan, device, options, std::move(prepared)) {}
  Plan plan;
  Session session;
};

// Plans by `make_plan` and takes the memory, the accelerator's first. `planned` sees each plan before
// anything is allocated for it. Libraries and page tables may then take more than was reserved for them. If
// the device would exceed its budget, or the host's arena does not fit beside the libraries, the memory is
// given back, the reserve is set to what is taken, and planning begins anew. The next plan keeps the budget,
// or `make_plan` throws because no plan can.
std::unique_ptr<PlannedSession> start_session(Device& device, Budgets& budgets, const SessionOptions& options,
                                              const std::function<Plan()>& make_plan,
                                              const std::function<void(const Plan&)>& planned);

}  // namespace sluice
