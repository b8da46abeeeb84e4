// From options to a plan: the steps that train, plan and eval share, in the order in which a user's mistakes show.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/budgets.h"
#include "engine/run/options.h"
#include "gpu/device.h"
#include "models/config.h"

namespace sluice {

struct ModelSource {
  ModelConfig config;
  std::string weights_directory;   // Hugging Face directory to start from; empty: initial weights
};

// --model: a preset or inline description, a config.json, or a Hugging Face directory. Throws Error(usage, malformed_file).
ModelSource resolve_model(const ModelOptions& options);

std::unique_ptr<Device> make_device(const MemoryOptions& options, int threads);

// The batch's micro-batches to consider, best first: as given, or every divisor, largest of at most 2048 tokens first.
std::vector<int64_t> micro_batch_candidates(const BatchOptions& batch, int64_t sequence);

// `device` outlives the request. Batch, sequence and precision come from the options.
PlanRequest plan_request(const Options& options, const ModelConfig& config, const Budgets& budgets, const Device& device,
                         bool evaluate);

// Plans and verifies. Throws Error(infeasible) that says which task needs what and the smallest budgets that work.
Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets);

}  // namespace sluice
