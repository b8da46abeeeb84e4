// How fast ranks exchange: gathers and exchanges as programs have them, among the ranks of a machine and
// between machines, as network levels of a machine description.
//
// All ranks call, each from one thread, with as much memory; nothing else should run on their machines.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/rates/machine_rates.h"
#include "engine/run/ranks/ranks.h"

namespace sluice {

// Messages of several lengths are timed, each for `seconds_each` at least, and seconds = messages x
// (latency + bytes / rate) is fitted to them. `memory` is the communicator's, which reaches all of `ranks`.
// `say` is told of every level as it becomes known. Lowest level first; empty for one rank. On all ranks the
// same. Throws Error(rank_lost).
std::vector<NetworkLevel> measure_network(const Ranks& ranks, Communicator& communicator,
                                          std::span<std::byte> memory, double seconds_each,
                                          const std::function<void(const std::string&)>& say);

// The least that `memory` may be for so many ranks.
uint64_t network_bytes_least(int ranks);

}  // namespace sluice
