// The parts of a plan's output about phases whose steps differ from the rest of the run, about compressed
// gradients, and about the tier in which ranks exchange.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "engine/plan/plan.h"

namespace sluice {

// The tier that collectives of ranks read and write.
const Tier& exchange_tier(const Machine& machine);

// The bandwidth at which a step with compressed gradients takes as long as one with whole gradients.
struct BreakEven {
  std::string network;               // whose bandwidth: a network level, or lane `collective`
  double bytes_per_second = 0;       // below it, compression pays; 0: never, infinite: always
  double bytes_per_second_here = 0;  // what the machine description says
  double seconds_whole = 0;          // a step with whole gradients here
};

// Makes a second plan, with whole gradients. `plan` is the plan of `request`. None if nothing is compressed,
// or the second plan does not fit.
std::optional<BreakEven> break_even(const Plan& plan, PlanRequest request);

// A line for each phase but the last, and one for compression; "" for a run of one phase without compression.
std::string phases_text(const Plan& plan, const std::optional<BreakEven>& even);

// Adds "phases" and "compression", where there are any.
void add_phases(const Plan& plan, const std::optional<BreakEven>& even, nlohmann::ordered_json& out);

}  // namespace sluice
