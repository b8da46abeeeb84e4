#include "tools/plan/phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/run/train/trainer.h"
#include "engine/simulate/simulate.h"

namespace sluice {

namespace {

constexpr const char* kCollective = "collective";

// The bandwidth of the highest network level, which is the slowest; without levels, the bandwidth of lane
// `collective`.
double& bandwidth_of(const Program& program, MachineRates& rates) {
  if (!rates.network.empty()) return rates.network.back().bytes_per_second;
  const Tier& tier = exchange_tier(program.machine);
  const LaneRates* const row = find_lane(rates, kCollective, tier.name);
  return rates.lanes[static_cast<size_t>(row - rates.lanes.data())].bytes_per_second;
}

double seconds_at(const Plan& plan, double bytes_per_second) {
  MachineRates rates = plan.rates;
  bandwidth_of(plan.program, rates) = bytes_per_second;
  return steady_step_seconds(plan.program, rates, plan.lowering.bodies().usual());
}

struct PhaseFacts {
  int64_t first, last;  // steps, from 1
  const char* what;
  double seconds;
  uint64_t sent;
};

uint64_t bytes_sent(const Plan& plan, std::span<const BodyId> step) {
  const std::vector<uint64_t> moved = moved_bytes(plan, step);
  uint64_t sent = 0;
  for (size_t l = 0; l < moved.size(); ++l)
    if (plan.program.machine.lanes[l].name == kCollective) sent += moved[l];
  return sent;
}

std::vector<PhaseFacts> earlier_phases(const Plan& plan) {
  std::vector<PhaseFacts> facts;
  const std::vector<BodyIds>& phases = plan.lowering.phases;
  for (size_t i = 0; i + 1 < phases.size(); ++i)
    facts.push_back({i ? phases[i - 1].until + 1 : 1, phases[i].until,
                     phases[i].unlock ? "layers shared" : "gradients whole",
                     steady_step_seconds(plan.program, plan.rates, phases[i].usual()),
                     bytes_sent(plan, phases[i].usual())});
  return facts;
}

}  // namespace

const Tier& exchange_tier(const Machine& machine) {
  const auto unit = std::find_if(machine.units.begin(), machine.units.end(),
                                 [](const Unit& u) { return u.kind == TaskKind::exchange; });
  return machine.tiers[unit->tier];
}

std::optional<BreakEven> break_even(const Plan& plan, PlanRequest request) {
  if (request.lower.compress_rank == 0 || plan.lowering.mesh.ranks() == 1) return std::nullopt;
  request.lower.compress_rank = 0;
  const auto result = make_plan(request);
  const Plan* const whole = std::get_if<Plan>(&result);
  if (!whole) return std::nullopt;
  MachineRates rates = plan.rates;
  BreakEven even;
  even.network = rates.network.empty() ? kCollective : rates.network.back().name;
  even.bytes_per_second_here = bandwidth_of(plan.program, rates);
  even.seconds_whole = whole->step_seconds;
  const auto pays = [&](double x) { return seconds_at(plan, x) < seconds_at(*whole, x); };
  double low = 1e5, high = 1e13;
  if (!pays(low)) return even;
  even.bytes_per_second = std::numeric_limits<double>::infinity();
  if (pays(high)) return even;
  for (int i = 0; i < 12; ++i) {  // to half a percent
    const double middle = std::sqrt(low * high);
    (pays(middle) ? low : high) = middle;
  }
  even.bytes_per_second = low;
  return even;
}

std::string phases_text(const Plan& plan, const std::optional<BreakEven>& even) {
  std::string out;
  for (const PhaseFacts& f : earlier_phases(plan))
    out += fmt::format("  steps {} to {}, {}: {} a step, {} sent\n", f.first, f.last, f.what,
                       readable_seconds(f.seconds), format_size(f.sent));
  if (!even) return out;
  const std::string network = printable(even->network);
  if (even->bytes_per_second == 0)
    out += fmt::format("  compression pays at no bandwidth of {}", network);
  else if (std::isinf(even->bytes_per_second))
    out += fmt::format("  compression pays at every bandwidth of {}", network);
  else
    out += fmt::format("  compression pays below {:.3g} GB/s of {}", even->bytes_per_second / 1e9, network);
  if (std::isfinite(even->bytes_per_second_here))
    out += fmt::format("; here {:.3g} GB/s", even->bytes_per_second_here / 1e9);
  return out + fmt::format("; without compression a step takes {}\n", readable_seconds(even->seconds_whole));
}

void add_phases(const Plan& plan, const std::optional<BreakEven>& even, nlohmann::ordered_json& out) {
  for (const PhaseFacts& f : earlier_phases(plan))
    out["phases"].push_back({{"first_step", f.first},
                             {"last_step", f.last},
                             {"what", f.what},
                             {"seconds_predicted", f.seconds},
                             {"sent_bytes", f.sent}});
  if (!even) return;
  out["compression"]["network"] = printable(even->network);
  out["compression"]["pays_below_bytes_per_second"] = nullptr;  // where it pays everywhere
  if (std::isfinite(even->bytes_per_second))
    out["compression"]["pays_below_bytes_per_second"] = even->bytes_per_second;
  out["compression"]["seconds_whole"] = even->seconds_whole;
}

}  // namespace sluice
