#include "engine/run/start/generation_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/run/start/plan_request.h"

namespace sluice {

GenerationSizes generation_sizes(const Options& options, const ModelConfig& config, int64_t sequences) {
  GenerationSizes sizes{.sequences = sequences};
  sizes.context =
      options.generate.max_context.value_or(std::min<int64_t>(config.context, kContextUnlessGiven));
  if (sizes.context > config.context)
    throw Error(ExitCode::usage,
                fmt::format("--max-context {} is longer than the model's context of {} tokens.",
                            sizes.context, config.context),
                fmt::format("Use --max-context {} or less.", config.context));
  const int64_t chunk = std::max<int64_t>(1, kChunkTokens / sequences);
  sizes.chunk = std::min(sizes.context, options.generate.prompt_chunk.value_or(chunk));
  return sizes;
}

PlanRequest generation_request(const Options& options, const ModelConfig& config,
                               const GenerationSizes& sizes, const Budgets& budgets,
                               const DeviceNeeds& needs) {
  Options sized = options;
  sized.batch = {.batch = sizes.sequences, .sequence = sizes.context, .micro_batch = sizes.sequences};
  sized.ranks = {};
  sized.data.documents = false;
  PlanRequest request = plan_request(sized, config, budgets, needs, false);
  request.model = [config, precision = options.numbers.precision, sizes](int64_t, int64_t) {
    return build_generation_model(config, precision, sizes.sequences, sizes.context, sizes.chunk);
  };
  request.recompute = Recompute::all;  // nothing is kept for a backward
  request.overlap = Overlap::never;
  request.lower.update_waits_for_norm = false;
  return request;
}

}  // namespace sluice
