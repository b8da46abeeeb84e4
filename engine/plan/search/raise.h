// Homes of transient buffers (activations, saved tensors, gradients on their way) above the lowest tier, in a
// few portions. Where lower tiers lack room and an upper one has some, these buffers live in the upper one
// and never travel.
//
// The tiers above the lowest take whole portions of the transient bytes, the top tier first. The buffers that
// live longest go highest. What a task in a lower tier may touch stays low.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

// How many portions are raised into each tier, in all at most kRaisedPortions. The entry of the lowest tier
// is 0, since what is not raised stays there.
using Raised = std::vector<uint32_t>;
constexpr uint32_t kRaisedPortions = 8;

// Every choice, ordered by how much it raises, then by how high. The first raises nothing.
std::vector<Raised> raised_choices(const Machine& machine);

// Transient buffers whose home is a choice, the longest life first.
std::vector<BufferId> raisable(const Program& program);

// Homes by buffer. Buffers that are not in `raisable` have their home in the lowest tier.
std::vector<TierId> raised_homes(const Program& program, const std::vector<BufferId>& raisable,
                                 const Raised& raised);

// By tier, the least bytes that transient buffers with these homes take in any arrangement: the most that
// lives in the tier at one moment. Above the lowest tier, this includes operands of the tasks that can run in
// this tier and in none below: operands with a lower home, and all permanent operands.
std::vector<uint64_t> transient_bytes_at_least(const Program& program, const std::vector<TierId>& homes);

}  // namespace sluice
