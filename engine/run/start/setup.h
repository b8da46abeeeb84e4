// From options to a plan: the steps that train, plan and eval share, in the order in which a user's mistakes
// show.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/ranks/ranks.h"
#include "engine/run/start/budgets.h"
#include "gpu/device.h"
#include "models/families/config.h"

namespace sluice {

struct ModelSource {
  ModelConfig config;
  std::string weights_directory;  // Hugging Face directory to start from; empty: initial weights
};

// --model: a Hugging Face directory or a config.json, which a slash or the ending .json also tell; else a
// preset or inline description. Throws Error(usage, malformed_file).
ModelSource resolve_model(const ModelOptions& options);

// --machine: empty, a built-in description's name, or a JSON file. Where there are directories in --nvme-dir,
// its drives of the nvme tier are theirs, one for each; else all. Throws Error(usage, malformed_file).
MachineRates resolve_machine(const MemoryOptions& options);

// The machine that `plan` is for rather than this one: that of --machine, if its description has sizes.
std::optional<MachineRates> described_machine(const MemoryOptions& options);

// --device auto becomes cuda where there is a GPU, else cpu; without --precision a GPU that has no bf16 takes
// fp16, unless a checkpoint has settled it. `elsewhere` is the machine in question, if it is not this one.
// Returns a printable sentence for what is not as always.
std::vector<std::string> settle_device(Options& options, bool precision_is_settled,
                                       const MachineRates* elsewhere = nullptr);

// The settled device. Throws Error(environment) for a GPU that is not there.
std::unique_ptr<Device> make_device(const MemoryOptions& options, int threads);

// Communicator between the accelerators of several ranks; none, and a clause why, where there are none or
// they cannot be connected. Called by all ranks.
AcceleratorRanks connect_accelerators(Device& device, const Ranks& ranks);

// What it holds by now, if it is an accelerator.
std::optional<AcceleratorUse> accelerator_use(Device& device);

WorkspaceBytes workspaces_of(const Device& device);  // which outlives it

// The batch's micro-batches to consider, best first: as given, or its divisors of at most 2048 tokens,
// largest first, and 1. Throws Error(usage) where all of them make more than 1024 slices.
std::vector<int64_t> micro_batch_candidates(const BatchOptions& batch, int64_t sequence);

// How many ranks share a machine, at the most.
int64_t ranks_per_node(const RankOptions& ranks, const MachineRates& rates);

// `workspaces` are the device's. What the options leave open of what ranks share is all that can be. Batch,
// sequence and precision come from the options. `ranks_meet_in_device` as machine_of() has it.
PlanRequest plan_request(const Options& options, const ModelConfig& config, const Budgets& budgets,
                         WorkspaceBytes workspaces, bool evaluate, bool ranks_meet_in_device = false);

Error infeasible_error(const PlanRequest& request, const Infeasible& why, const Budgets& budgets);

// --zero auto and --shard-weights auto: plans for all that the options leave open, and settles for what is
// predicted to be fastest; what shares less must be clearly faster. `request` is for any of them. Returns a
// printable sentence, which is empty where nothing was open.
std::string settle_sharing(RankOptions& options, PlanRequest request);

// That the plan's program is correct, alone and among its ranks: a CHECK.
void check_program(const Plan& plan);

// Plans and verifies. Throws infeasible_error().
Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets);

}  // namespace sluice
