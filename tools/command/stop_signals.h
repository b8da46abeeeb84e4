// SIGINT, SIGTERM, SIGHUP and SIGUSR1 while there is something to save.
//
// Until stop_on_signals() is called, a signal ends the process at once: nothing could be lost. Afterwards the
// first signal asks for a clean end, and is answered at once (a launcher's SIGTERM is not). A second SIGINT,
// SIGTERM or SIGHUP ends the process at once, with the last checkpoint intact. Two signals within a second or
// two count as one, since timeout(1) and terminals send theirs both to the process and to its group. If
// SIGHUP, which a lost terminal sends, is ignored, as under nohup, it stays ignored. SIGUSR1 stops the ranks
// of a launcher: mpirun passes it on to all and kills none. A rank under a launcher must print why it ends. A
// signal handler cannot, so another thread ends the process.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "engine/run/train/stop_forecast.h"

namespace sluice {

// From here until stop_on_signals() a signal prints `words` (at most 500 bytes) on standard error and ends
// the process with `code`; if `code` is `done`, it ends the process as an unhandled signal would. The first
// process of a container needs this call: the system drops the signals for which that process has no handler.
// Caller: main, before the verb.
void end_on_early_signals(ExitCode code, const std::string& words);

// From here on signals ask for a clean end. The first one is answered on standard error with `begin`, what
// the forecast of forecast_stops() says, and `end`, at most 500 bytes each; "" on ranks that do not print. Of
// several ranks that are threads, the first calls it. Callers: verbs.
void stop_on_signals(const std::string& begin, const std::string& end = "");
// `forecast` says how long a stop takes, and must live until another is set. nullptr: that is not known.
void forecast_stops(const StopForecast* forecast);
// From here on nothing could be lost: until stop_on_signals() is called again, a signal ends the process at
// once. Callers: the verbs profile and prepare, which run alone.
void end_on_signals();
// True once a clean end is asked for.
const std::atomic<bool>& stop_flag();

// For ranks of a launcher; main thread, before stop_on_signals(). From here on SIGUSR1 asks for a clean end.
void note_stop_requests();
// From here on the thread that polls signalled_end() ends the process, not a signal handler: SIGTERM may mean
// that another rank has died.
void note_terminations();

// Any thread:
bool was_terminated();
// Why the process has to end at once, and what to do. It is not the true reason where the launcher sent the
// signal because another rank has died.
struct SignalledEnd {
  const char *why, *remedy;
};
std::optional<SignalledEnd> signalled_end();

}  // namespace sluice
