// How long a collective takes on a network of levels (machine_rates.h), and how many bytes it sends on each
// level. docs/machine.md has the formulas.
//
// The model is what the communicators do (gpu/ranks/communicator.h): in a process group every rank sends to
// every other rank, and all groups do so at once. Ranks are numbered machine by machine. All machines have
// equally many ranks, but the last may have fewer. Callers: the simulator, the trainer and reports; no state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "engine/rates/machine_rates.h"

namespace sluice {

// The levels that `ranks` ranks use, each cut down to join at most `ranks`. `per_node` ranks share a machine;
// 0: as many as the lowest level joins. Throws Error(usage) where the description joins fewer than `ranks`
// ranks.
std::vector<NetworkLevel> levels_for(const MachineRates& rates, uint32_t ranks, uint32_t per_node);

// Seconds of a collective, or of a save whose bytes leave each of several machines; else 0.
double network_seconds(const Program& program, const std::vector<NetworkLevel>& levels, const Task& task);

// Bytes that one rank sends in a collective.
uint64_t sent_bytes(const Program& program, const Task& task);

// The bytes that count for an instruction: those that a transfer moves, that a collective sends, or that any
// other task works on.
uint64_t counted_bytes(const Program& program, const Body& body, const Instruction& in);

// By level: bytes that one of the level's members (NetworkLevel) sends in `bodies` to ranks outside of that
// member.
std::vector<uint64_t> network_bytes(const Program& program, const std::vector<NetworkLevel>& levels,
                                    std::span<const BodyId> bodies);

}  // namespace sluice
