// What a collective takes on a network of levels (machine_rates.h): how ranks send it, and what that puts on
// each level. docs/machine.md has the formulas.
//
// It says what the communicators do (gpu/ranks/communicator.h), with ranks numbered machine by machine and as
// many on each but the last: in a process group every rank sends to every other, all groups at once. Callers:
// the simulator, the trainer and reports; any thread; no state.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

// The levels that so many ranks use, each joining no more than these; `per_node` of them share a machine, 0:
// as many as the lowest level joins. Throws Error(usage) where the description joins fewer ranks.
std::vector<NetworkLevel> levels_for(const MachineRates& rates, uint32_t ranks, uint32_t per_node);

// Of a gather or exchange on such levels; 0 for what is not a collective, and without levels.
double network_seconds(const Program& program, const std::vector<NetworkLevel>& levels, const Task& task);

// By one rank in such a task.
uint64_t sent_bytes(const Program& program, const Task& task);

// That an instruction's rate is counted in: what a copy moves, a collective sends, another task works on.
uint64_t counted_bytes(const Program& program, const Body& body, const Instruction& in);

// By level: what one unit of the level below sends to ranks outside of it in a body.
std::vector<uint64_t> network_bytes(const Program& program, const std::vector<NetworkLevel>& levels,
                                    const Body& body);

}  // namespace sluice
