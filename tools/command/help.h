// Texts of --help, made from the option table, so that they cannot fall behind it. Set-up code, any thread.
#pragma once

#include <string>

#include "engine/run/options.h"

namespace sluice {

std::string program_help();        // verbs, a first example, exit codes
std::string verb_help(Verb verb);  // usage, options by group with their defaults, examples

}  // namespace sluice
