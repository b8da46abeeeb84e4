// `sluice plan --generate`: how fast a model would speak within budgets, or which budgets would do. Also
// what the samples of a run take of its plan.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/run/start/planned_run.h"

namespace sluice {

// `run`: as for training; its request is replaced.
ExitCode plan_generation(PlannedRun run, std::FILE* out);

// A line for the plan of a run; empty: it writes no samples.
std::string samples_text(const Plan& plan, const Options& options);
// The same as an object.
void add_samples(const Plan& plan, const Options& options, nlohmann::ordered_json& out);

}  // namespace sluice
