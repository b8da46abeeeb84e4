// The two clocks: one measures durations, the other gives the time of day. Any thread.
#pragma once

namespace sluice {

// Seconds since some fixed moment; never goes back. For traces, progress and what devices report.
double steady_seconds();

// Seconds since 1970 began (UTC). Goes back where the system's clock is set back. For lines that are read
// beside the lines of other software.
double unix_seconds();

}  // namespace sluice
