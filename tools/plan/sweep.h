// `sluice plan --sweep`: plans for a range of one quantity, a table and a curve of what a step would take.
//
// Every point is a plan of its own, as `sluice plan` would make it with that value; no run is started.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/run/options/options.h"

namespace sluice {

struct SweepPoint {
  uint64_t value = 0;
  bool feasible = false;
  std::string refused;  // why no run can have this value, whatever its budgets; "" where one can
  double step_seconds = 0, token_seconds = 0, least_seconds = 0;
  std::string bottleneck;
  double bottleneck_fraction = 0;  // of the step, that what all ask of it takes
  bool knee = false;
};

// A knee is a point up to which a token gets cheaper, by a twentieth at least for each doubling of the
// quantity since the point before, and from which on it hardly does: by less than a quarter of that up to the
// next one. Requires rising values.
void mark_knees(std::span<SweepPoint> points);

// Prints for options whose plan.sweep is QUANTITY=FROM:TO. A value that is refused, as a batch that the ranks
// do not divide, is a row that says so. Throws Error(usage) for an unknown quantity, an empty range, or where
// all values are refused, and what planning throws.
ExitCode run_sweep(const Options& options, std::FILE* out);

}  // namespace sluice
