// The planner's request for a model that generates text. Callers: generate, plan.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "models/families/family.h"
#include "models/text/samples/generation_settings.h"

namespace sluice {

// By default, the context is the model's, but at most 4096 tokens, and the chunks of all sequences have about
// kChunkTokens together.
constexpr int64_t kContextUnlessGiven = 4096, kChunkTokens = 512, kPromptsAtOnce = 8;
GenerationSizes generation_sizes(const Options& options, const ModelConfig& config, int64_t sequences);

// Takes the settings of the model's generation_config.json where no option is given. `context`: the model's.
// Returns sentences that say which settings are applied, and which are not.
std::vector<std::string> apply_generation_settings(Options& options, const GenerationSettings& settings,
                                                   int64_t context);

// Throws as plan_request() does.
PlanRequest generation_request(const Options& options, const ModelConfig& config,
                               const GenerationSizes& sizes, const Budgets& budgets,
                               const DeviceNeeds& needs);

}  // namespace sluice
