// `sluice plan --sweep`: plans for a range of one quantity, as a table and a curve of the predicted seconds.
//
// Every point is the plan that `sluice plan` would make with that value; no run is started.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/run/options/options.h"
#include "tools/plan/token_work.h"

namespace sluice {

struct SweepPoint {
  uint64_t value = 0;
  bool feasible = false;
  bool refused = false;  // no run can have this value under any budgets
  std::string reason;    // why it is not feasible; "" if it is
  double step_seconds = 0, token_seconds = 0, least_seconds = 0;
  std::string bottleneck;
  double bottleneck_fraction = 0;  // of the step: how long the bottleneck is busy at its full rate
  TokenWork work = {};             // if it is feasible
  int64_t sequence = 0;            // tokens
  uint64_t parameters = 0;         // of the model
  bool knee = false;
};

// Marks knees. Between the point before a knee and the knee, a doubling of the quantity saves at least a
// twentieth of a token's time. Between the knee and the next point, a doubling saves less than a quarter of
// what a doubling saves before the knee. Requires rising values.
void mark_knees(std::span<SweepPoint> points);

// Requires options whose plan.sweep is QUANTITY=FROM:TO. A value that is refused, such as a batch that the
// ranks do not divide, has a row that says so. Throws Error(usage) for an unknown quantity, for an empty
// range, and where all values are refused; also throws what planning throws.
ExitCode run_sweep(const Options& options, std::FILE* out);

}  // namespace sluice
