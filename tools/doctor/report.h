// `sluice doctor` as people read it, and as programs do. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/checks.h"

namespace sluice {

// A line a check; below one that is not ok, what follows from it and the command that mends it.
std::string doctor_text(const DoctorFacts& facts, const std::vector<Check>& checks);

// One object: the facts, then the checks. Sizes in bytes, rates in bytes a second; null for what is not known
// or, of a limit, where there is none. Floats read back exactly.
std::string doctor_json(const DoctorFacts& facts, const std::vector<Check>& checks);

}  // namespace sluice
