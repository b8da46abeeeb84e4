// `sluice plan --generate`: how fast a model would speak within budgets, or which budgets would do. Also
// what the samples of a run take of its plan.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/run/start/planned_run.h"

namespace sluice {

// `run` is as for training. Its request is replaced by one for generation.
ExitCode plan_generation(PlannedRun run, std::FILE* out);

// A line about samples, for the plan of a run. "" if the run writes no samples.
std::string samples_text(const Plan& plan, const Options& options);
// Adds the facts about samples to the JSON object `out`.
void add_samples(const Plan& plan, const Options& options, nlohmann::ordered_json& out);

}  // namespace sluice
