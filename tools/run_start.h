// What `sluice train` begins with, and `sluice plan` plans for: the checkpoint of --resume, or --model.
// Set-up code, main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/run/agreement.h"
#include "engine/run/checkpoint.h"
#include "engine/run/options.h"
#include "engine/run/setup.h"
#include "models/hf_weights.h"

namespace sluice {

// A checkpoint, weights of a directory, or neither, which means initial weights.
struct RunStart {
  std::optional<CheckpointReader> checkpoint;
  ModelSource source;
  std::optional<HfWeights> weights;  // not opened yet
  std::vector<std::string> notes;    // sentences to print
};

// Finds the checkpoint or the model, and settles the options that it brings. Changes nothing on disk. Throws
// as open_resume(), apply_manifest(), check_options() and resolve_model() do.
RunStart open_run_start(Options& options, Verb verb);

// What ranks with files of their own compare: --model's configuration, and a sample of every tensor.
std::vector<Fact> start_facts(const RunStart& start);

}  // namespace sluice
