// Texts of --help, made from the tables of verbs and options and the registry of model families, so that they
// cannot fall behind those.
#pragma once

#include <string>

#include "engine/run/options/options.h"

namespace sluice {

std::string program_help();        // verbs, a first example, exit codes
std::string verb_help(Verb verb);  // usage, options by group with their defaults, models, examples

}  // namespace sluice
