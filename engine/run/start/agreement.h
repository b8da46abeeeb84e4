// Compares what the ranks of a run are about to do, before the first step: ranks that differ would hang, or
// train something that nobody asked for. Every rank calls these functions.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/ranks/ranks.h"

namespace sluice {

struct Fact {
  std::string name, value;  // "--seed", "7"
};

// Compares a hash of the command's file that each rank runs. Ranks tell each other this first, since another
// version of the command may send other messages afterwards. Throws Error(usage) on every rank.
void check_same_program(const Ranks& ranks);

// Compares facts, which have the same names on all ranks. Throws Error(usage) on every rank, naming the first
// rank that differs from rank 0, and the first fact in which it does.
void check_facts(const std::vector<Fact>& facts, const Ranks& ranks);

// Calls check_facts(), then compares the collectives of the ranks' programs.
void check_agreement(const std::vector<Fact>& facts, const Plan& plan, const Ranks& ranks);

}  // namespace sluice
