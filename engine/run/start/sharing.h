// What ranks share of their state. What --zero and --shard-weights leave open is settled by simulated time.
#pragma once

#include <cstdint>
#include <string>

#include "engine/plan/plan.h"
#include "engine/run/options/options.h"
#include "engine/run/start/budgets.h"

namespace sluice {

// Sets in `lower` what the options say about sharing. What they leave open is shared by all ranks. Throws
// Error(usage) if the options ask to share weights within each node, there are several nodes, and the number
// of ranks of some node is not even.
void apply_sharing(const RankOptions& options, const Mesh& mesh, LowerOptions& lower);

// Settles --zero auto and --shard-weights auto: chooses (engine/plan/sharding.h) among what the options leave
// open, with plans within the budgets. `request` may be made for any of these choices. Returns a printable
// sentence, which is empty where nothing was open.
std::string settle_sharing(RankOptions& options, PlanRequest request, const Budgets& budgets);

}  // namespace sluice
