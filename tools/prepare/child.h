// A child process prepares the data if that is needed, so that preparation has memory of its own. When this
// process ends, so does the child: a signal that has its default action is passed on to the child; otherwise
// the child is killed. Parts that are done are kept. Callers: train, eval, profile, before they open their
// data.
#pragma once

#include <string>
#include <vector>

#include "engine/run/options/options.h"
#include "engine/run/start/run_data.h"

namespace sluice {

// Where --data or --val-data are text or chats, has them prepared. `tokenizer`: the directory of the model,
// which may have no tokenizer. Waits for other processes of this machine that prepare the same. Appends to
// `notes` sentences on options that were given and mean nothing for the data, as these are tokens already.
// Throws Error(usage) where there is no tokenizer, kinds of files are mixed, or --chat-template is no
// template. If the child fails, throws an Error with its exit code.
PreparedData prepare_data(const Options& options, Verb verb, const std::string& tokenizer, int64_t vocabulary,
                          std::vector<std::string>& notes);

}  // namespace sluice
