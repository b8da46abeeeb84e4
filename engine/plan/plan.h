// The planner's door: model, batch, machine and budgets in; a verified-to-be program, or why there is none, out.
//
// place (this file's search) picks the home of every permanent buffer, which segments recompute, the leads, and once, when
// it is automatic, the micro-batch, so that the budgets hold and the simulated step is shortest.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/graph.h"
#include "engine/machine_rates.h"
#include "engine/plan/assemble.h"
#include "engine/plan/lower.h"
#include "engine/program.h"

namespace sluice {

enum class RecomputeChoice : uint8_t { automatic, all, none };

struct PlanRequest {
  Machine machine;                                  // capacities are arena bytes
  MachineRates rates;
  std::function<Model(int64_t micro_batch)> model;
  std::vector<int64_t> micro_batches;               // candidates, best guess first; each divides the batch
  RecomputeChoice recompute = RecomputeChoice::automatic;
  LowerOptions lower;                               // recompute is place's
};

struct Plan {
  Model model;
  Lowering lowering;
  Program program;
  Arrangement arrangement;
  double step_seconds = 0;                          // simulated, steady state
};

struct Infeasible {
  std::string body, task;                           // which task needs what, in words; task may be empty
  TierId tier = 0;
  uint64_t bytes_needed = 0, capacity = 0;
};

std::variant<Plan, Infeasible> make_plan(const PlanRequest& request);

}  // namespace sluice
