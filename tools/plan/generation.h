// `sluice plan --generate`: how fast a model would speak within budgets, or which budgets would do.
#pragma once

#include <cstdio>

#include "engine/run/start/planned_run.h"

namespace sluice {

// `run`: as for training; its request is replaced.
ExitCode plan_generation(PlannedRun run, std::FILE* out);

}  // namespace sluice
