// `sluice plan --why NAME`: the life of one buffer, or of a layer's buffers, in a plan. It tells where a
// buffer lives and which rule decided that. For each transfer of a step it tells when the transfer runs,
// which task needs it, and what keeps it from running earlier. Times are simulated, of a steady step.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace sluice {

// What NAME stands for: the permanent buffer of that name, the buffers of the parameter group of that name,
// or the buffers of the parameter groups that the layer of that name uses. Throws Error(usage) with similar
// names.
std::vector<BufferId> buffers_named(const Plan& plan, const std::string& name);

// The answer as text, wrapped.
std::string why_text(const Plan& plan, const std::string& name);

}  // namespace sluice
