// What a run would lose if it were killed, or its power failed. Caller: train, before the first step.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/options/options.h"
#include "engine/run/train/saving.h"

namespace sluice {

// A clause that begins with "a kill loses", for a start that has `steps` steps before it. `every` is
// --checkpoint-every and `saving` what it means, as predicted. `no_room`: why nothing is written on the way,
// a clause; "": there is room.
std::string kill_words(const Interval& every, const Saving& saving, int64_t steps,
                       const std::string& no_room);

}  // namespace sluice
