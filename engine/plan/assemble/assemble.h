// Assemble: a lowered program and a choice of homes become instructions with addresses and waits.
//
// If several units can run a task, the home of its largest permanent operand decides: the task goes to the
// lowest unit that is not below that home. If all units are below, it goes to the highest. So state that
// lives in device memory is updated there. Then each body is staged, from the top tier down, and waits are
// derived for all bodies. The search (engine/plan/search) chooses homes and leads; nothing here judges them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "engine/plan/stage/stage.h"
#include "engine/program/program.h"

namespace sluice {

struct Arrangement {
  std::vector<TierId> homes;                           // by buffer; not used for scalars and workspaces
  std::vector<uint32_t> leads;                         // by tier, in costs of tasks
  bool keep = true;                                    // staged copies may outlive their use
  std::vector<std::vector<uint32_t>> task_costs = {};  // by body and task; empty: each costs 1
  bool transient_only = false;  // stage_all only: no transfers of permanent buffers (stage.h)
  // Unless null, receives what kept each fetch of a buffer in notes->wanted from beginning earlier.
  FetchNotes* notes = nullptr;
};

struct BodyShortage {
  BodyId body = 0;
  Shortage shortage;
};

// By buffer, the lowest tier in which a task can touch it.
std::vector<TierId> lowest_touches(const Program& program);

// Gives every buffer its home, and permanent ones an address. Scalars and rings live in the lowest memory
// tier, workspaces in the tier of their tasks, picks at the home of their bank, and other buffers as `homes`
// says. But no transient buffer has its home above its lowest_touches(). Between uses, staging may move a
// transient buffer down, at most to its home. Returns by tier where permanent homes end.
std::vector<uint64_t> place_homes(Program& program, const std::vector<TierId>& homes);

// Places homes and stages every body: places and peaks, no waits yet. `on_staged` is called for each body
// once it is staged; it may drop the body's instructions, so that they are never all in memory at once.
std::optional<BodyShortage> stage_all(Program& program, const Arrangement& arrangement,
                                      const std::function<void(Body&)>& on_staged = {});

// Does what stage_all() does, and derives all waits. `program` has tasks only, as lower() left it.
std::optional<BodyShortage> assemble(Program& program, const Arrangement& arrangement);

}  // namespace sluice
