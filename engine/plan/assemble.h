// Assemble: a lowered program and a choice of homes become instructions with addresses and waits.
//
// A task of which the machine has several units runs on the lowest one that is not below the home of its
// largest permanent operand: what lives in device memory is updated there. Then the passes stage (with lay
// out) for every body, from the top tier down, and sync over all bodies. The choice of homes and leads is
// place's (place.cc); nothing here judges it.
#pragma once

#include <optional>
#include <vector>

#include "engine/plan/stage.h"
#include "engine/program.h"

namespace sluice {

struct Arrangement {
  std::vector<TierId> homes;    // by buffer; used for permanent buffers that are not scalars
  std::vector<uint32_t> leads;  // by tier, in weights of tasks
  bool keep = true;             // staged copies may outlive their use
  std::vector<std::vector<uint32_t>> task_weights = {};  // by body and task; empty: each weighs 1
};

struct BodyShortage {
  BodyId body = 0;
  Shortage shortage;
};

// The lowest tier whose bytes a processor can address, and the lowest tier of all.
TierId lowest_memory_tier(const Machine& machine);
TierId lowest_tier(const Machine& machine);

// Gives every permanent buffer its home and address: scalars and rings in the lowest memory tier, the others
// as arranged; transient buffers may sink to the lowest tier (scalars: the lowest memory tier). Returns by
// tier where permanent homes end.
std::vector<uint64_t> place_homes(Program& program, const std::vector<TierId>& homes);

// Places homes and stages every body: places and peaks, no waits yet.
std::optional<BodyShortage> stage_all(Program& program, const Arrangement& arrangement);

// The same, and derives all waits. `program` has tasks only, as lower() left it.
std::optional<BodyShortage> assemble(Program& program, const Arrangement& arrangement);

}  // namespace sluice
