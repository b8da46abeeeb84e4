#include "engine/plan/stage.h"

#include <algorithm>

#include "engine/plan/staging.h"

namespace sluice {

uint64_t placement_alignment(const Machine& machine, TierId tier) {
  uint64_t alignment = machine.tiers[tier].alignment;
  for (const Link& link : machine.links)
    if (link.from == tier || link.to == tier) alignment = std::max(alignment, link.alignment);
  return alignment;
}

std::optional<Shortage> stage(const Program& program, Body& body, const StageOptions& options) {
  const staging::TierUses uses = staging::collect_uses(program, body, options);
  staging::Allocations allocations(uses);
  const uint64_t least_bytes = options.base + allocations.most_bytes();
  if (least_bytes > options.capacity) return allocations.shortage(least_bytes);
  allocations.choose();
  const uint64_t peak = staging::lay_out(allocations);
  if (peak > options.capacity) return allocations.shortage(peak);
  staging::grow_fetches(allocations);
  staging::emit(allocations, body);
  body.peak_bytes[options.tier] = peak;
  return std::nullopt;
}

}  // namespace sluice
