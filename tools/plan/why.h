// `sluice plan --why NAME`: the life of one buffer, or of a layer's, in a plan: where it lives and which rule
// decided that, and for each transfer of a step when it runs, who needs it, and what keeps it from running
// earlier. Times are simulated, of a steady step.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace sluice {

// What --why NAME means: the permanent buffer of that name, a group of parameters with that name, or the
// groups that a layer of that name uses. Throws Error(usage) with names that are near.
std::vector<BufferId> buffers_named(const Plan& plan, const std::string& name);

// As text, wrapped.
std::string why_text(const Plan& plan, const std::string& name);

}  // namespace sluice
