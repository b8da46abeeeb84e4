// `sluice plan --explain`: of every class of buffers where it lives, why, what that moves, and what else the
// search looked at.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/plan/plan.h"

namespace sluice {

std::string explain_text(const Plan& plan);

// Adds to `plan --json` every candidate that was weighed.
void add_weighed(const Plan& plan, nlohmann::ordered_json& out);

}  // namespace sluice
