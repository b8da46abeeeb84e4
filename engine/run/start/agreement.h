// Whether all ranks of a run mean the same: before the first step, since ranks that differ would hang, or
// train something that nobody asked for. All ranks' trainers call.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/ranks/ranks.h"

namespace sluice {

struct Fact {
  std::string name, value;  // "--seed", "7"
};

// Whether they run the same program, as bytes: the first thing that ranks tell each other, since another
// program's ranks may go on differently. Throws Error(usage) on every rank.
void check_same_program(const Ranks& ranks);

// Compares facts, which have the same names on all ranks. Throws Error(usage) on every rank, naming the first
// rank and the first thing that differ from rank 0's.
void check_facts(const std::vector<Fact>& facts, const Ranks& ranks);

// The same, and then what the program's collectives are.
void check_agreement(const std::vector<Fact>& facts, const Plan& plan, const Ranks& ranks);

}  // namespace sluice
