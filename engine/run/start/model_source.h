// What --model names: a configuration, and perhaps weights to start from.
#pragma once

#include <string>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/options/options.h"
#include "models/families/config.h"
#include "models/weights/hf_weights.h"

namespace sluice {

struct ModelSource {
  ModelConfig config;
  std::string directory;          // Hugging Face directory, if --model is one
  std::string weights_directory;  // has the weights to start from, or the base's; empty: none
  uint64_t table_bytes = 0;       // host memory that HfWeights of these weights keep at most
};

// The adapters that options ask for. Those of --lora-from bring their rank, alpha and targets, which are
// filled in; `notes` receives a sentence for what is not applied. Throws Error(usage) where --lora-from and
// another option contradict each other, and as read_adapter_config() and HfWeights::open_adapters() do.
Adapters settle_adapters(LoraOptions& options, std::vector<std::string>& notes, const ModelConfig& base);
// As settle_adapters(), for options that are settled already.
Adapters adapters_of(const LoraOptions& options);

// Checks that `weights` are the weights of the base that `base` describes. Throws Error(malformed_file) if
// they are not.
void check_base(const HfWeights& weights, const Model& model, const BaseModel& base);
// The directory of the base: --base, else the directory that `base` names. Throws Error(usage) if the
// directory has no weights.
std::string base_directory(const BaseModel& base, const LoraOptions& options);

// --model is a Hugging Face directory or a config.json where it exists, has a slash, or ends in .json. Else
// it is a preset or an inline description. Throws Error(usage, malformed_file).
ModelSource resolve_model(const ModelOptions& options);

// The model of a checkpoint. `options` are settled. `opens_base`: the weights of the base will be read if the
// model has adapters; throws as base_directory() does.
ModelSource source_of_run(const CheckpointReader& checkpoint, const Options& options, bool opens_base);

}  // namespace sluice
