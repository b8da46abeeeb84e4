// The manual page sluice(1), from the same data as --help: `sluice help --man` prints it, so that it always
// belongs to the command beside it, and no build step or file has to.
#pragma once

#include <string>

namespace sluice {

// In the man macros of roff; ASCII. Options that several verbs take are explained for the first of them.
std::string manual();

}  // namespace sluice
