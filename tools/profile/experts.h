// How many tokens chose each expert of each layer in the steps of a profile, as the routers counted in
// training.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/run/train/metrics.h"

namespace sluice {

// `experts` of profile.json; null if the model has none or no step ended.
nlohmann::ordered_json expert_facts(std::span<const StepMetrics> steps);

// The facts as a line for the terminal, as a section of profile.md, and as a section of the page: a map with
// a square for each layer and expert. All are empty for null.
std::string experts_line(const nlohmann::ordered_json& experts);
std::string experts_markdown(const nlohmann::ordered_json& experts);
std::string experts_section(const nlohmann::ordered_json& experts);

}  // namespace sluice
