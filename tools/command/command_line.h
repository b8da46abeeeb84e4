// From argv to typed options. Nothing here prints or exits: help comes back as text, every failure as
// Error(usage), or as what read_config throws for a --config file. Caller: main, once.
#pragma once

#include <string>

#include "engine/run/options/options.h"
#include "tools/command/wrap.h"

namespace sluice {

struct ParsedCommand {
  Verb verb = Verb::train;
  Options options;
  std::string text;  // not empty: the answer to --help, --version or the like, to print before exit code 0
};

// argv[0] is the command's name. Help is at most `columns` wide. Options of --config are applied first, so
// the command line wins; options of the file and of the command line count as given. With --resume, and for
// eval, options that a manifest may bring are not required here: the verb calls check_options again once it
// has read the manifest.
ParsedCommand parse_command_line(int argc, const char* const* argv, size_t columns = kPageColumns);

}  // namespace sluice
