// Do the collectives of several ranks match, and can ranks block each other? Each program is correct alone
// (verify.h).
//
// A rank's collectives on one lane go over one communicator. So the n-th collective on a lane of a body
// matches every other rank's n-th collective on the lane of the same name.
// 1. Matching collectives have the same kind, the same bytes, and process groups of equal count and stride.
//    The bytes fit the number of ranks in the group.
// 2. They meet in one global order over all lanes. In each rank, the order of its lanes and its waits say
//    what happens before what. These relations of all ranks, joined at the matches, must have no cycle: in a
//    cycle, ranks wait for one another. The check lets every collective wait for all ranks, also where its
//    process group is smaller. That only adds relations, so a run has no cycle either. A match is within one
//    body, and all ranks go through the same bodies, so no cycle spans two bodies.
//
// O(instructions x lanes). Callers: plan, train and profile, where there are several ranks, with the program
// that all of them run; no state. Requires programs in which verify() finds nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

// "gather 3/0 of w.layer3 among all, 4096 bytes for 16384": what a rank gives and gets.
std::string collective_name(const Program& program, const Body& body, const Instruction& instruction);

// Indices of the body's collectives, in list order.
std::vector<uint32_t> collectives_of(const Body& body);

// One sentence on the first fault, without a full stop: "body step: program 1 has gather 0/0 of ... where
// program 0 has ...", or "body step: ranks wait for one another: program 0 in ..., program 1 in ...".
std::optional<std::string> verify_ranks(std::span<const Program* const> programs);

}  // namespace sluice
