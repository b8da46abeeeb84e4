// The Chrome trace-event file of a profile, for ui.perfetto.dev and chrome://tracing.
#pragma once

#include <string>

#include "tools/profile/facts.h"

namespace sluice {

// A lane is a thread of the trace. Its instructions are complete events. On an overlapping lane, instructions
// are asynchronous events, each within an event that has the lane's name. Counters are bytes of every tier by
// class. Times are microseconds since the first instruction began.
std::string profile_trace(const ProfiledRun& run);

}  // namespace sluice
