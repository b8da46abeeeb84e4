// Reader of tokenizer.json.
#pragma once

#include <string>

#include "models/text/tokenizer/parts.h"

namespace sluice {

// Reads the files beside it that add tokens (token_additions.h), too. Throws Error: usage when there is no
// such file, malformed_file when it is damaged, contradicts itself, or asks for a component that is not
// supported.
TokenizerParts read_tokenizer_file(const std::string& path);

}  // namespace sluice
