// The weights of --from, for verbs that run a model and do not train it. Callers: eval, generate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/options/options.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/model_source.h"
#include "models/weights/hf_weights.h"

namespace sluice {

// The weights of a checkpoint or of a Hugging Face directory.
struct WeightsStart {
  std::optional<CheckpointReader> checkpoint;
  ModelSource source;
  std::optional<HfWeights> weights;  // opened by check_weights_start()
  std::vector<std::string> notes;    // sentences to print
};

// Finds the weights of --from, takes over the options that a checkpoint holds, and settles the device. Throws
// Error.
WeightsStart open_weights_start(Options& options, Verb verb);

// The directory that may hold the tokenizer: the directory of the weights, or the run's own copy.
std::string text_directory(const WeightsStart& start);

// Opens the weights. Throws unless every tensor of the model is there in its shape.
void check_weights_start(WeightsStart& start, const Model& model);

// After check_weights_start(); `start` outlives it.
ParameterSource source_of(const WeightsStart& start);

}  // namespace sluice
