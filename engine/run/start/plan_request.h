// Options, a model and budgets become the planner's request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "models/families/family.h"

namespace sluice {

// The most micro-batches of a step. With more, a plan is larger and takes longer to make.
constexpr int64_t kMicroBatchesMax = 1024;

// The sizes of micro-batch to consider, best first: the one given; or the divisors of the batch that make at
// most `tokens` tokens (busy_tokens()), largest first, and 1. Throws Error(usage) where every size makes more
// than 1024 micro-batches, or a number of micro-batches that --waves does not divide.
std::vector<int64_t> micro_batch_candidates(const BatchOptions& batch, int64_t sequence, int64_t tokens);

// Tokens of a micro-batch that keeps the device busy: `tokens` (DeviceSizes::micro_batch_tokens), times a
// factor that makes up for experts having fewer rows. The factor is experts / experts_per_token / R, or 1 if
// that is less. The experts are divided over R ranks (ModelConfig::mesh).
int64_t busy_tokens(const ModelConfig& config, int64_t tokens);

// The model of one micro-batch. Its loss works on as many rows at a time as a device of these sizes asks for.
Model sized_model(const ModelConfig& config, DType precision, const DeviceSizes& sizes, int64_t micro_batch,
                  int64_t sequence, bool documents = false,
                  const std::optional<GenerationSizes>& samples = {});

// The most ranks that share a machine.
int64_t ranks_per_node(const RankOptions& ranks, const MachineRates& rates);

// How many ranks the experts are divided over. --experts-over of an earlier run need not divide the number of
// ranks here. The greatest common divisor of the two is then taken.
int64_t experts_over(const Options& options);
// A sentence if experts_over() differs from --experts-over of the earlier run; else "".
std::string experts_over_note(const Options& options);

// What data a model is made for.
struct DataUse {
  bool documents = false;  // rows hold several documents
  bool validates = false;
};

// `needs`: the device's. `ranks_meet_in_device`: as in machine_of(). `samples` is given if the model also
// generates, between steps. Where the options leave open what ranks share, ranks share all.
PlanRequest plan_request(const Options& options, const ModelConfig& config, const Budgets& budgets,
                         const DeviceNeeds& needs, const DataUse& data, bool ranks_meet_in_device = false,
                         const std::optional<GenerationSizes>& samples = {});

}  // namespace sluice
