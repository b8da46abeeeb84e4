// SIGINT, SIGTERM and SIGUSR1 while there is something to save.
//
// Until stop_on_signals() is called they end the process at once, as any program: nothing has been done that
// could be lost. Afterwards the first asks for a clean end. A second SIGINT or SIGTERM ends at once, with the
// last checkpoint intact. Within a second or two they count as one: timeout(1) and terminals send theirs to
// the process and to its group. SIGUSR1 is how a launcher's ranks are stopped: mpirun hands it on to all, and
// kills nobody. A launcher's rank says why it ends, so a thread beside the main one ends it.
#pragma once

#include <atomic>
#include <optional>

namespace sluice {

// Takes the process's signals from here on; true once one came. Caller: the verb train, once.
const std::atomic<bool>& stop_on_signals();

// Where a launcher has started several ranks; main thread, before stop_on_signals(). From here on SIGUSR1
// asks for a clean end.
void note_stop_requests();
// And no signal ends the process: SIGTERM may mean that another rank has died.
void note_terminations();

// Any thread:
bool was_terminated();
// Why the process is to end at once, if no rank has died: a sentence, and what to do.
struct SignalledEnd {
  const char *why, *remedy;
};
std::optional<SignalledEnd> signalled_end();

}  // namespace sluice
