// The one clock, for traces, progress and what devices report. Any thread.
#pragma once

namespace sluice {

// Seconds since some fixed moment; never goes back.
double steady_seconds();

}  // namespace sluice
