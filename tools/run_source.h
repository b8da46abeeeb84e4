// Where weights come from: a run directory, one checkpoint, or a Hugging Face directory. Set-up code of
// train, eval, export.
#pragma once

#include <optional>
#include <string>

#include "engine/run/checkpoint.h"
#include "engine/run/loader.h"
#include "engine/run/options.h"
#include "models/config.h"
#include "models/hf_weights.h"

namespace sluice {

// The checkpoint that `path` means: itself, or the newest complete one of a run directory; nullopt if it is
// neither.
std::optional<std::string> find_checkpoint(const std::string& path);

// Parameters from a checkpoint's masters (frozen groups: weights), a Hugging Face directory, or made from the
// seed. What is read from outlives the result.
ParameterSource source_of(const CheckpointReader& checkpoint);
ParameterSource source_of(const HfWeights& weights);
ParameterSource source_of(uint64_t seed);

}  // namespace sluice
