// How fast ranks exchange, as network levels of a machine description: all-gathers and all-to-alls, as
// programs have them, among the ranks of a machine and between machines.
//
// All ranks call, each from one thread, with equal memory; nothing else should run on their machines.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/rates/machine_rates.h"
#include "engine/run/ranks/ranks.h"

namespace sluice {

// Times messages of several lengths, each for about `seconds_each`, and fits seconds = messages x (latency
// + bytes / rate) to the times. Between machines, all ranks of a machine send at once, and `bytes` is what
// they send together. `communicator` can send from `memory` and reaches all of `ranks`. Calls `say` with a
// line for each level as soon as it is known. Returns the levels, the lowest first, the same on all ranks;
// none for one rank. Throws Error(rank_lost).
std::vector<NetworkLevel> measure_network(const Ranks& ranks, Communicator& communicator,
                                          std::span<std::byte> memory, double seconds_each,
                                          const std::function<void(const std::string&)>& say);

// The fewest bytes of `memory` with which measure_network() can measure `ranks` ranks.
uint64_t network_bytes_least(int ranks);

}  // namespace sluice
