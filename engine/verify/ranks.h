// Do the programs of several ranks meet? Each is correct alone (verify.h); here are their collectives.
//
// A rank's collectives on one lane go over one communicator, so the n-th on a lane of a body matches the n-th
// of every other rank on the lane of that name. 1. Such matches have the same kind, as many bytes, and
// process groups of one form, for whose ranks the bytes are right. 2. They meet in one global order over all
// lanes: the matches together with what happens before what within each rank (its lanes' order and its waits)
// have no circle, or all ranks would wait for one another. Groups of ranks are taken to wait for all, so what
// has no circle here has none. Matches join one body, and all ranks go through the same bodies, so no circle
// spans two. O(instructions x lanes). Callers: plan and train where there are several ranks, with one program
// for each role; any thread; no state. Requires programs in which verify() finds nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

// "gather 3/0 of w.layer3 among all, 4096 bytes for 16384": what a rank gives and gets.
std::string collective_name(const Program& program, const Body& body, const Instruction& instruction);

// In the order of the list.
std::vector<uint32_t> collectives_of(const Body& body);

// One sentence on the first fault, without a full stop: "body step: program 1 has gather 0/0 of ... where
// program 0 has ...", or "body step: ranks wait for one another: program 0 in ..., program 1 in ...".
std::optional<std::string> verify_ranks(std::span<const Program* const> programs);

}  // namespace sluice
