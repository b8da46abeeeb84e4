// The verbs of the command, one row each: the command line, --help, launchers and main all follow the table.
//
// A verb takes parsed options, does its work, prints to `out`, and returns the exit code; failures are
// Errors. The rows of the options (engine/run/options) say which verbs take an option. Callers: main, and
// tests that run a verb in their own process.
#pragma once

#include <cstdio>
#include <span>
#include <string>

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

struct VerbRow {
  Verb verb;
  ExitCode (*run)(Options options, std::FILE* out);
  bool on_ranks;       // a launcher may start it as several ranks
  bool prints_result;  // its result is what it prints: it fails where that cannot be written
  // For --help. `about` and `examples` are as HelpSection::text and HelpSection::examples.
  const char *summary, *usage, *about, *examples;
  const char* word = "";  // the option whose value may stand after the verb without the option's name
};

std::span<const VerbRow> verb_table();  // in the order of Verb
const VerbRow& verb_row(Verb verb);
const VerbRow* find_verb(const std::string& word);  // nullptr: there is none of that name

}  // namespace sluice
