// What a run begins with: the checkpoint of --resume, or --model. `sluice train` starts from it, `sluice
// plan` plans for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/parallel.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/execute/session.h"
#include "engine/run/options/options.h"
#include "engine/run/start/agreement.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/run_data.h"
#include "models/weights/hf_weights.h"

namespace sluice {

// A checkpoint, or the weights of a directory. Where there is neither, the run begins with initial weights.
struct RunStart {
  std::optional<CheckpointReader> checkpoint;
  ModelSource source;
  // Opened by check_start(): weights of the model, or of the base of adapters; and adapters of --lora-from.
  std::optional<HfWeights> weights, adapters;
  std::string adapters_directory;  // of --lora-from, where a run begins with it
  std::optional<BaseModel> base;   // of adapters; set by check_start()
  std::vector<std::string> notes;  // sentences to print
  bool is_same_run = false;        // the run goes on in the directory of the checkpoint's run

  // To call once the run has begun: the files of a pruned checkpoint take space as long as they are open.
  void close() { checkpoint.reset(), weights.reset(), adapters.reset(); }
};

// Finds the checkpoint or the model, and settles the options that it brings, the device and the number of
// ranks. Changes no file. Throws as open_resume(), apply_manifest(), check_options() and resolve_model() do.
RunStart open_run_start(Options& options, Verb verb);

// Opens the weights. Throws unless every tensor of the model is there in its shape.
void check_start(RunStart& start, const Model& model);

// Fills the session's arenas.
void load_start(const RunStart& start, uint64_t seed, Session& session, Workers& workers);

// The state before step 1. The caller adds micro-batch, options, and the data's size and checksum.
CheckpointState first_state(const Options& options, const ModelConfig& config);

// The state that the first step of this start begins with. `options` are as the user gave them, except that
// sequence and micro-batch are resolved. They go into the manifest, and a later resume takes them over,
// perhaps on another machine. `fresh_run`: CheckpointState::run of a run that begins here.
CheckpointState state_of(const RunStart& start, const Options& options, const RowData& data,
                         uint64_t fresh_run);

// The directory that may hold the tokenizer of a run: the model's directory, or the run's own copy.
std::string text_directory(const RunStart& start);

// Ranks may read different files, so they compare these: the configuration of --model and, where it brings
// weights, a sample of every tensor.
std::vector<Fact> start_facts(const RunStart& start);

}  // namespace sluice
