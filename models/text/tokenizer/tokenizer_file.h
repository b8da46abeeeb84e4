// Reader of tokenizer.json.
#pragma once

#include <string>

#include "models/text/tokenizer/parts.h"

namespace sluice {

// Also reads the files beside `path` that add tokens (token_additions.h). Throws Error: usage when there is
// no such file, malformed_file when the file is damaged, contradicts itself, or asks for a component that is
// not supported.
TokenizerParts read_tokenizer_file(const std::string& path);

}  // namespace sluice
