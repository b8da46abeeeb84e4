// What a run that is asked to end may drop of the steps under way. Caller: the trainer.
#pragma once

#include "engine/plan/plan.h"
#include "engine/run/execute/executor.h"

namespace sluice {

// A checkpoint has what the body `save` touches. A step changes that by updates. Where all updates of a step
// wait for the next one, what follows them in that one is not needed. Where a step's own backward updates, a
// step that has begun to is needed whole.
Droppable droppable_parts(const Plan& plan);

}  // namespace sluice
