// The verbs of the command, one row each: the command line, --help, launchers and main all follow the table.
//
// A verb takes parsed options, does its work, prints to `out`, and returns the exit code; failures are
// Errors. Which options a verb takes stands in the rows of the options (engine/run/options). Callers: main,
// and tests that want a verb without a process.
#pragma once

#include <cstdio>
#include <span>
#include <string>

#include "engine/base/error.h"
#include "engine/run/options/options.h"

namespace sluice {

// On a signal from the first step on it ends with a durable checkpoint and ExitCode::stopped
// (stop_signals.h).
ExitCode run_train(Options options, std::FILE* out);
ExitCode run_plan(Options options, std::FILE* out);
ExitCode run_eval(Options options, std::FILE* out);
ExitCode run_export(Options options, std::FILE* out);
// ExitCode::environment where training with the same --device and --nvme-dir would be refused.
ExitCode run_doctor(Options options, std::FILE* out);
// The training command's code, also where it failed half-way and the report says what happened until then.
ExitCode run_profile(Options options, std::FILE* out);
// Takes the processor for itself; writes --out. Where a launcher has started several ranks, all call.
ExitCode run_bench(Options options, std::FILE* out);

struct VerbRow {
  Verb verb;
  ExitCode (*run)(Options options, std::FILE* out);
  bool on_ranks;       // a launcher may start it as several ranks; another verb they would only repeat
  bool prints_result;  // what it prints is what it was asked for: it fails where that cannot be written
  const char *summary, *usage, *about, *examples;  // for --help
};

std::span<const VerbRow> verb_table();  // in the order of Verb
const VerbRow& verb_row(Verb verb);
const VerbRow* find_verb(const std::string& word);  // nullptr: there is none of that name

}  // namespace sluice
