// What a run that is asked to end may drop of the steps under way. Caller: the trainer.
#pragma once

#include "engine/plan/plan.h"
#include "engine/run/execute/executor.h"

namespace sluice {

// A checkpoint stores what the body `save` touches. Of a step, only the updates change what is stored. If all
// updates wait for the body of the next step, that body is needed only up to its last update. If backward
// updates its own step's weights, a body whose updates have begun is needed whole.
Droppable droppable_parts(const Plan& plan);

}  // namespace sluice
