// From argv to typed options. Nothing here prints or exits: help comes back as text, every failure as
// Error(usage) (or Error(malformed_file) for a --config file). Caller: main, once.
#pragma once

#include <string>

#include "engine/run/options/options.h"

namespace sluice {

struct ParsedCommand {
  Verb verb = Verb::train;
  Options options;
  std::string text;  // not empty: --help or --version was asked; print it and end with exit code 0
};

// argv[0] is the program's name. Options of --config are applied first, so the command line wins; both
// count as given. With --resume, and for eval, what a manifest may bring is left to a second call of
// check_options.
ParsedCommand parse_command_line(int argc, const char* const* argv);

}  // namespace sluice
