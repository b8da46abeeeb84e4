#include "engine/run/start/generation_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/run/start/plan_request.h"

namespace sluice {

GenerationSizes generation_sizes(const Options& options, const ModelConfig& config, int64_t sequences) {
  GenerationSizes sizes{.sequences = sequences};
  sizes.context =
      options.generate.max_context.value_or(std::min<int64_t>(config.context, kContextUnlessGiven));
  const int64_t chunk = std::max<int64_t>(1, kChunkTokens / sequences);
  sizes.chunk = std::min(sizes.context, options.generate.prompt_chunk.value_or(chunk));
  return sizes;
}

std::vector<std::string> apply_generation_settings(Options& options, const GenerationSettings& settings,
                                                   int64_t context) {
  GenerateOptions& g = options.generate;
  std::vector<std::string> applied, notes, not_applied = settings.not_applied;
  const auto take = [&](const char* option, const char* key, const auto& value, auto& field) {
    if (!value || is_given(options, option)) return;
    field = *value;
    applied.push_back(fmt::format("{} {}", key, *value));
  };
  take("temperature", "temperature", settings.temperature, g.temperature);
  if (g.temperature > 0) {
    take("top-k", "top_k", settings.top_k, g.top_k);
    take("top-p", "top_p", settings.top_p, g.top_p);
    take("min-p", "min_p", settings.min_p, g.min_p);
  }
  take("repetition-penalty", "repetition_penalty", settings.repetition_penalty, g.repetition_penalty);
  take("max-tokens", "max_new_tokens", settings.max_tokens, g.max_tokens);
  // As in transformers, a limit on the answer takes precedence over one on prompt and answer together.
  const bool has_tokens = settings.max_tokens || is_given(options, "max-tokens");
  if (!has_tokens && settings.max_length && !is_given(options, "max-context")) {
    if (*settings.max_length < std::min(context, kContextUnlessGiven))
      take("max-context", "max_length", settings.max_length, g.max_context);
    else if (*settings.max_length > std::min(context, kContextUnlessGiven))
      not_applied.push_back("max_length");  // --max-context says how long caches are
  }
  if (!settings.stops.empty() && !is_given(options, "stop")) {
    g.stops = settings.stops;
    applied.push_back(fmt::format("stop_strings ({})", settings.stops.size()));
  }
  if (!applied.empty())
    notes.push_back(fmt::format("generation_config.json sets {}.", fmt::join(applied, ", ")));
  if (!not_applied.empty())
    notes.push_back(fmt::format("generation_config.json also has {}, which {} not applied.",
                                fmt::join(not_applied, ", "), not_applied.size() == 1 ? "is" : "are"));
  return notes;
}

PlanRequest generation_request(const Options& options, const ModelConfig& config,
                               const GenerationSizes& sizes, const Budgets& budgets,
                               const DeviceNeeds& needs) {
  Options sized = options;
  sized.batch = {.batch = sizes.sequences, .sequence = sizes.context, .micro_batch = sizes.sequences};
  sized.ranks = {};
  PlanRequest request = plan_request(sized, config, budgets, needs, {});
  request.model = [config, precision = options.numbers.precision, sizes](int64_t, int64_t) {
    return build_generation_model(config, precision, sizes.sequences, sizes.context, sizes.chunk);
  };
  request.recompute = Recompute::all;  // nothing is kept for a backward
  request.overlap = Overlap::never;
  request.lower.update_waits_for_norm = false;
  return request;
}

}  // namespace sluice
