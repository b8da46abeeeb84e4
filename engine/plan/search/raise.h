// Homes of transient buffers (activations, what backward needs of them, gradients on their way) above the
// lowest tier, in a few portions: where the lower tiers are short, and an upper one is not, they live there
// and never travel.
//
// The tiers above the lowest take whole portions of their bytes, the top tier first; what lives longest goes
// highest, since it is what fills a tier towards the middle of a step. What a task in a lower tier may touch
// stays low.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

// Portions by tier, in all at most kRaisedPortions. Those of the lowest tier are 0: it has the rest.
using Raised = std::vector<uint32_t>;
constexpr uint32_t kRaisedPortions = 8;

// Every choice: the one that raises nothing first, then by how much is raised, and how high.
std::vector<Raised> raised_choices(const Machine& machine);

// What has a choice, the longest life first.
std::vector<BufferId> raisable(const Program& program);

// By buffer, all others in the lowest tier.
std::vector<TierId> raised_homes(const Program& program, const std::vector<BufferId>& raisable,
                                 const Raised& raised);

// By tier, what transient buffers with these homes take there at least in any arrangement: at some moment so
// much lives there, and in the top tier with it what a task needs that can only run there, were everything
// permanent in lower tiers.
std::vector<uint64_t> transient_bytes_at_least(const Program& program, const std::vector<TierId>& homes);

}  // namespace sluice
