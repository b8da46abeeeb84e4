// Where weights come from: a run directory, one checkpoint, or a Hugging Face directory. Callers: train,
// eval, export.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/start/loader.h"
#include "models/weights/hf_weights.h"

namespace sluice {

// Error(malformed_file) for a run whose every checkpoint is damaged; `damaged` are sentences that say how.
Error only_damaged(const std::string& run, const std::vector<std::string>& damaged);

// The checkpoint that `path` means: itself, or the newest complete one of a run directory; nullopt if it is
// neither. Throws only_damaged().
std::optional<std::string> find_checkpoint(const std::string& path);

// Parameters from a Hugging Face directory, or made from the seed. What is read from outlives the result.
ParameterSource source_of(const HfWeights& weights);
ParameterSource source_of(uint64_t seed);

}  // namespace sluice
