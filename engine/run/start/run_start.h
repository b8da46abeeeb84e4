// What `sluice train` begins with, and `sluice plan` plans for: the checkpoint of --resume, or --model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/parallel.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/execute/session.h"
#include "engine/run/options/options.h"
#include "engine/run/start/agreement.h"
#include "engine/run/start/setup.h"
#include "models/data/token_data.h"
#include "models/weights/hf_weights.h"

namespace sluice {

// A checkpoint, weights of a directory, or neither, which means initial weights.
struct RunStart {
  std::optional<CheckpointReader> checkpoint;
  ModelSource source;
  std::optional<HfWeights> weights;  // not opened yet
  std::vector<std::string> notes;    // sentences to print
};

// Finds the checkpoint or the model, and settles the options that it brings. Changes nothing on disk.
// `elsewhere` is the machine that a plan is for, if it is not this one. Throws as open_resume(),
// apply_manifest(), check_options() and resolve_model() do.
RunStart open_run_start(Options& options, Verb verb, const MachineRates* elsewhere = nullptr);

// Refuses data other than the run's: the order of windows, and so every bit, depends on them.
void check_same_data(const CheckpointState& run, const TokenData& data);

// Every tensor of the model is there in its shape; throws otherwise.
void check_start(RunStart& start, const Model& model);

// Fills the session's arenas.
void load_start(const RunStart& start, uint64_t seed, Session& session, Workers& workers);

// What the first step begins with. `options` are resolved.
CheckpointState state_of(const RunStart& start, const Options& options, const TokenData& data);

// What ranks with files of their own compare: --model's configuration, and a sample of every tensor.
std::vector<Fact> start_facts(const RunStart& start);

}  // namespace sluice
