// Data that have to be prepared, prepared by a child process, so that its memory is its own. The child
// ends with this process: it is asked to where signals have their default action, and killed otherwise; parts
// that are done are kept. Callers: train, eval, profile,
// before they open their data.
#pragma once

#include <string>
#include <vector>

#include "engine/run/options/options.h"
#include "engine/run/start/run_data.h"

namespace sluice {

// Where --data or --val-data are text or chats, has them prepared. `tokenizer`: the directory of the model's,
// perhaps without one. Waits for other processes of this machine that prepare the same. Appends to `notes`
// sentences on options that were given and mean nothing for the data, as these are tokens already. Throws
// Error: usage where there is no tokenizer or kinds of files are mixed, or where --chat-template is none;
// what the child ended with.
PreparedData prepare_data(const Options& options, Verb verb, const std::string& tokenizer, int64_t vocabulary,
                          std::vector<std::string>& notes);

}  // namespace sluice
