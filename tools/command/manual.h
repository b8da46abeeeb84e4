// The manual page sluice(1), from the same data as --help. `sluice help --man` prints it, so the page always
// fits the command, and needs neither a build step nor a file.
#pragma once

#include <string>

namespace sluice {

// In the man macros of roff; ASCII. Options that several verbs take are explained for the first of them.
std::string manual();

}  // namespace sluice
