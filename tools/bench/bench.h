// `sluice bench` at a scale of the caller's choice, for tests.
#pragma once

#include "tools/bench/scale.h"
#include "tools/command/run_verb.h"

namespace sluice {

ExitCode run_bench(Options options, std::FILE* out, const BenchScale& scale);

}  // namespace sluice
