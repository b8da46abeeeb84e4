#include "engine/plan/stage/stage.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/plan/stage/staging.h"

namespace sluice {

uint64_t placement_alignment(const Machine& machine, TierId tier) {
  uint64_t alignment = machine.tiers[tier].alignment;
  for (const Link& link : machine.links)
    if (link.from == tier || link.to == tier) alignment = std::max(alignment, link.alignment);
  return alignment;
}

TierId lowest_memory_tier(const Machine& machine) {
  size_t tier = machine.tiers.size();
  while (tier > 0 && machine.tiers[tier - 1].file) --tier;
  CHECK(tier > 0, "a machine without memory");
  return static_cast<TierId>(tier - 1);
}

TierId lowest_tier(const Machine& machine) { return static_cast<TierId>(machine.tiers.size() - 1); }

std::optional<Shortage> stage(const Program& program, Body& body, const StageOptions& options) {
  const staging::TierUses uses = staging::collect_uses(program, body, options);
  staging::Allocations allocations(uses);
  const uint64_t least_bytes = options.base + allocations.most_bytes();
  if (least_bytes > options.capacity) return allocations.shortage(least_bytes);
  allocations.choose();
  const uint64_t peak = staging::lay_out(allocations);
  if (peak > options.capacity) return allocations.shortage(peak);
  std::vector<uint32_t> lead_starts;
  if (options.notes) lead_starts = staging::starts_of(allocations);
  staging::grow_fetches(allocations);
  std::vector<staging::StartBound> bounds;
  if (options.notes) bounds = staging::bounds_of(allocations, lead_starts);
  staging::emit(allocations, bounds, body);
  body.peak_bytes[options.tier] = peak;
  return std::nullopt;
}

}  // namespace sluice
