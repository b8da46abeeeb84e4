// SIGINT, SIGTERM and SIGUSR1 while there is something to save.
//
// Until stop_on_signals() is called they end the process at once, as any program: nothing has been done that
// could be lost. Afterwards the first asks for a clean end. A second SIGINT or SIGTERM ends at once, with the
// last checkpoint intact. Within a second or two they count as one: timeout(1) and terminals send theirs to
// the process and to its group. SIGUSR1 is how a launcher's ranks are stopped: mpirun hands it on to all, and
// kills nobody.
#pragma once

#include <atomic>

namespace sluice {

// Takes the process's signals from here on; true once one came. Caller: the verb train, once.
const std::atomic<bool>& stop_on_signals();

// Where a launcher has started several ranks: from here on SIGTERM does not end the process at once, since it
// may mean that another rank has died. Main thread, before stop_on_signals().
void note_terminations();
bool was_terminated();  // any thread
// It did not mean that: ends the process if there is nothing to save. Any thread.
void end_if_nothing_to_save();

}  // namespace sluice
