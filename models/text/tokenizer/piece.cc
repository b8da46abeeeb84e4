#include "models/text/tokenizer/piece.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace sluice {

void check_size(std::string_view text) {
  if (text.size() > kTextBytesMax)
    throw Error(ExitCode::malformed_file,
                fmt::format("A text to be tokenized has {} bytes; at most {} are possible.", text.size(),
                            kTextBytesMax),
                "Divide it into documents.");
}

}  // namespace sluice
