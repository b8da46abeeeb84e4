// What a plan says of phases whose steps differ from the rest of the run, of compressed gradients, and of
// where ranks exchange.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "engine/plan/plan.h"

namespace sluice {

// Where ranks exchange what they send.
const Tier& exchange_tier(const Machine& machine);

// Where compressed gradients cost as much time as whole ones.
struct BreakEven {
  std::string network;               // whose bandwidth it is: a level of the network, or the collective lane
  double bytes_per_second = 0;       // compression pays below; 0: nowhere, infinite: everywhere
  double bytes_per_second_here = 0;  // what the machine description says
  double seconds_whole = 0;          // a step with whole gradients here
};

// Plans once more, with whole gradients. `plan` is the request's. None where that plan does not fit, or
// nothing is compressed.
std::optional<BreakEven> break_even(const Plan& plan, PlanRequest request);

// A line for each phase but the last, and one for compression; "" for a run of one phase without it.
std::string phases_text(const Plan& plan, const std::optional<BreakEven>& even);

// Adds "phases" and "compression", where there are any.
void add_phases(const Plan& plan, const std::optional<BreakEven>& even, nlohmann::ordered_json& out);

}  // namespace sluice
