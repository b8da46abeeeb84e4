// Options as a request to prepare data, and where prepared sets are kept.
#pragma once

#include <string>

#include "engine/run/options/options.h"
#include "models/prepare/prepare.h"

namespace sluice {

// `tokenizer`: directory. Throws Error(usage) for values that cannot be read.
PrepareRequest prepare_request(const Options& options, const std::vector<std::string>& files,
                               const std::string& tokenizer, int64_t vocabulary);

// --cache, else $XDG_CACHE_HOME/sluice or ~/.cache/sluice. Throws Error(usage) where none is known.
std::string cache_directory(const Options& options);

}  // namespace sluice
