// What the verbs of the command do, each in its folder.
//
// A verb takes parsed options, does its work, prints to `out`, and returns the exit code; failures are
// Errors. Callers: main, and tests that run a verb in their own process.
#pragma once

#include <cstdio>

#include "engine/base/error.h"
#include "engine/run/options/options.h"

namespace sluice {

// After a signal, from the first step on, the verb ends with a durable checkpoint and ExitCode::stopped
// (stop_signals.h).
ExitCode run_train(Options options, std::FILE* out);
// Where a signal stops it, what is done is kept, and the exit code is ExitCode::stopped.
ExitCode run_prepare(Options options, std::FILE* out);
ExitCode run_plan(Options options, std::FILE* out);
ExitCode run_eval(Options options, std::FILE* out);
ExitCode run_export(Options options, std::FILE* out);
// ExitCode::environment where training with the same --device and --nvme-dir would be refused.
ExitCode run_doctor(Options options, std::FILE* out);
// Returns the exit code of the training command. If that failed half-way, the report has what happened until
// then.
ExitCode run_profile(Options options, std::FILE* out);
// Needs the machine for itself; writes --out. Where a launcher has started several ranks, all call.
ExitCode run_bench(Options options, std::FILE* out);
ExitCode run_completion(Options options, std::FILE* out);
// Writes --out from the runs' files, which it only reads.
ExitCode run_report(Options options, std::FILE* out);
// A signal ends it with the answers that are there; the exit code is ExitCode::stopped.
ExitCode run_generate(Options options, std::FILE* out);

// Calls one of the above. Defined in tools/run_verb.cc, since it needs all verbs.
ExitCode run_verb(Verb verb, Options options, std::FILE* out);

}  // namespace sluice
