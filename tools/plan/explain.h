// `sluice plan --explain`: where each class of buffers lives and why, what it moves in a step, and which
// other candidates the search weighed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/plan/plan.h"

namespace sluice {

std::string explain_text(const Plan& plan);

// Adds every weighed candidate to the output of `plan --json`.
void add_weighed(const Plan& plan, nlohmann::ordered_json& out);

}  // namespace sluice
