// The verbs of the command. Each takes parsed options, does its work, prints to `out`, and returns the exit
// code; failures are Errors. Callers: main, and tests that want a verb without a process.
#pragma once

#include <cstdio>

#include "engine/error.h"
#include "engine/run/options.h"
#include "tools/bench/scale.h"

namespace sluice {

// On a signal from the first step on it ends with a durable checkpoint and ExitCode::stopped
// (stop_signals.h).
ExitCode run_train(Options options, std::FILE* out);
ExitCode run_plan(Options options, std::FILE* out);
// The training command's code, also where it failed half-way and the report says what happened until then.
ExitCode run_profile(Options options, std::FILE* out);
ExitCode run_eval(Options options, std::FILE* out);
ExitCode run_export(Options options, std::FILE* out);
// Takes the processor for itself; writes --out. Where a launcher has started several ranks, all call.
ExitCode run_bench(Options options, std::FILE* out, const BenchScale& scale = {});
// ExitCode::environment where training with the same --device and --nvme-dir would be refused.
ExitCode run_doctor(const Options& options, std::FILE* out);

}  // namespace sluice
