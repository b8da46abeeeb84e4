// SIGINT and SIGTERM while there is something to save.
//
// Until stop_on_signals() is called they end the process at once, as any program: nothing has been done that
// could be lost. Afterwards the first asks for a clean end and the second ends at once, with the last
// checkpoint intact. Within a second or two they count as one: timeout(1) and terminals send theirs to the
// process and to its group.
#pragma once

#include <atomic>

namespace sluice {

// Takes the process's signals from here on; true once one came. Caller: the verb train, once.
const std::atomic<bool>& stop_on_signals();

}  // namespace sluice
