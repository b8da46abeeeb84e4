// What --model names: a configuration, and perhaps weights to start from.
#pragma once

#include <string>

#include "engine/run/options/options.h"
#include "models/families/config.h"

namespace sluice {

struct ModelSource {
  ModelConfig config;
  std::string directory;          // Hugging Face directory, if --model is one
  std::string weights_directory;  // the same if its weights are the start; empty: initial weights
  uint64_t table_bytes = 0;       // of host memory at most, for names and places of these weights
};

// --model is a Hugging Face directory or a config.json where it exists, has a slash, or ends in .json. Else
// it is a preset or an inline description. Throws Error(usage, malformed_file).
ModelSource resolve_model(const ModelOptions& options);

}  // namespace sluice
