// `sluice bench` at another scale than the user's, for tests.
#pragma once

#include "tools/bench/scale.h"
#include "tools/command/verbs.h"

namespace sluice {

ExitCode run_bench(Options options, std::FILE* out, const BenchScale& scale);

}  // namespace sluice
