#include "engine/plan/least.h"

#include <algorithm>

#include "engine/error.h"
#include "engine/pack.h"

namespace sluice {

namespace {

constexpr uint64_t kPlenty = UINT64_MAX / 4;

uint64_t home_bytes(const Buffer& b, uint64_t alignment) { return round_up(b.bytes(), alignment); }

}  // namespace

Least::Least(const Program& lowered)
    : lowered_(lowered), memory_(lowest_memory_tier(lowered.machine)), lowest_(lowest_tier(lowered.machine)) {
  Program p = lowered;
  for (Tier& t : p.machine.tiers) t.capacity = kPlenty;
  permanent_ = place_homes(p, all_low().homes);
  CHECK(!stage_all(p, all_low()).has_value(), "plenty is not enough");
  peaks_ = p.arena_bytes;
}

Arrangement Least::all_low() const {
  return {std::vector<TierId>(lowered_.buffers.size(), lowest_),
          std::vector<uint32_t>(lowered_.machine.tiers.size(), 0), false};
}

// The same arrangement again, one byte short of what this tier needs.
BodyShortage Least::largest_task(TierId tier) const {
  Program tight = lowered_;
  for (Tier& t : tight.machine.tiers) t.capacity = kPlenty;
  tight.machine.tiers[tier].capacity = peaks_[tier] - 1;
  const auto shortage = stage_all(tight, all_low());
  CHECK(shortage.has_value(), "one byte less than the peak is enough");
  return *shortage;
}

// State first into the lowest tier, then gradients, then weights, each while there is room.
Least::Split Least::split_homes(uint64_t lowest_capacity) const {
  Split split{std::vector<TierId>(lowered_.buffers.size(), lowest_), 0};
  if (memory_ == lowest_) return split;
  const uint64_t low_alignment = placement_alignment(lowered_.machine, lowest_);
  const uint64_t alignment = placement_alignment(lowered_.machine, memory_);
  uint64_t room = lowest_capacity - std::min(lowest_capacity, working_bytes(lowest_));
  for (const BufferClass kind : {BufferClass::state, BufferClass::gradients, BufferClass::weights})
    for (size_t i = 0; i < lowered_.buffers.size(); ++i) {
      const Buffer& b = lowered_.buffers[i];
      if (!b.permanent || b.kind != kind) continue;
      if (home_bytes(b, low_alignment) <= room) {
        room -= home_bytes(b, low_alignment);
      } else {
        split.homes[i] = memory_;
        split.memory_bytes += home_bytes(b, alignment);
      }
    }
  return split;
}

uint64_t Least::needed(TierId tier, const std::vector<uint64_t>& capacities) const {
  if (tier == lowest_ && memory_ != lowest_) return working_bytes(tier);  // homes may lie above
  return tier == memory_ ? peaks_[tier] + split_homes(capacities[lowest_]).memory_bytes : peaks_[tier];
}

std::optional<Arrangement> Least::arrangement(const std::vector<uint64_t>& capacities) const {
  for (TierId t = 0; t < capacities.size(); ++t)
    if (needed(t, capacities) > capacities[t]) return std::nullopt;
  return Arrangement{split_homes(capacities[lowest_]).homes, std::vector<uint32_t>(capacities.size(), 0),
                     false};
}

std::optional<uint64_t> Least::of_tier(TierId tier, std::vector<uint64_t> capacities) const {
  for (TierId t = 0; t < capacities.size(); ++t) {
    if (t == tier || (tier == lowest_ && t == memory_)) continue;
    if (needed(t, capacities) > capacities[t]) return std::nullopt;
  }
  if (tier != lowest_ || memory_ == lowest_) return needed(tier, capacities);
  capacities[tier] = peaks_[tier];
  if (needed(memory_, capacities) > capacities[memory_]) return std::nullopt;
  uint64_t low = working_bytes(tier), high = peaks_[tier];  // more of the lowest tier never needs more memory
  while (low < high) {
    capacities[tier] = low + (high - low) / 2;
    if (needed(memory_, capacities) <= capacities[memory_])
      high = capacities[tier];
    else
      low = capacities[tier] + 1;
  }
  return low;
}

}  // namespace sluice
