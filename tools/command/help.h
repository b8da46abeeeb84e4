// Texts of --help, made from the tables of verbs and options and from the registry of model families, so that
// they are never out of date.
#pragma once

#include <string>

#include "engine/run/options/options.h"

namespace sluice {

std::string program_help();        // verbs, a first example, exit codes
std::string verb_help(Verb verb);  // usage, options by group with their defaults, models, examples

}  // namespace sluice
