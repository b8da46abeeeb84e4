// The Chrome trace-event file of a profile, for ui.perfetto.dev and chrome://tracing.
#pragma once

#include <string>

#include "tools/profile/facts.h"

namespace sluice {

// Lanes are threads: complete events, but asynchronous ones where a lane's instructions overlap, each in one
// that is named after the lane. Counters: bytes of every tier by class. Times are microseconds from the first
// beginning.
std::string profile_trace(const ProfiledRun& run);

}  // namespace sluice
