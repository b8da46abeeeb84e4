// The output of `sluice doctor` as text and as JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/checks.h"

namespace sluice {

// One line for each check. Below a check that is not ok stand its advice and its command.
std::string doctor_text(const DoctorFacts& facts, const std::vector<Check>& checks);

// One object: the facts, then the checks. Sizes are in bytes, rates in bytes a second. null stands for an
// unknown fact and for a limit that does not exist. Floats read back exactly.
std::string doctor_json(const DoctorFacts& facts, const std::vector<Check>& checks);

}  // namespace sluice
