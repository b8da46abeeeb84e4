#include "engine/plan/least.h"

#include <algorithm>

#include "engine/error.h"
#include "engine/pack.h"

namespace sluice {

namespace {

constexpr uint64_t kPlenty = UINT64_MAX / 4;

// Peaks of every tier under an arrangement that keeps nothing and leads nowhere.
std::vector<uint64_t> peaks(const Program& lowered, const Arrangement& arrangement) {
  Program p = lowered;
  for (Tier& t : p.machine.tiers) t.capacity = kPlenty;
  CHECK(!stage_all(p, arrangement).has_value(), "plenty is not enough");
  return p.arena_bytes;
}

}  // namespace

Least::Least(const Program& lowered)
    : lowered_(lowered), memory_(lowest_memory_tier(lowered.machine)), lowest_(lowest_tier(lowered.machine)) {
  const std::vector<BufferClass> all{BufferClass::weights, BufferClass::gradients, BufferClass::state};
  for (const BufferClass kind : all)
    for (BufferId i = 0; i < lowered.buffers.size(); ++i)
      if (lowered.buffers[i].permanent && lowered.buffers[i].kind == kind) movable_.push_back(i);
  const Arrangement low = all_low();
  Program p = lowered;
  permanent_ = place_homes(p, low.homes);
  together_ = peaks(lowered, low);
  fixed_low_ = without_movable(together_, low);
  fixed_with_upper_ = fixed_low_;
  for (TierId upper = 0; upper < memory_; ++upper)
    for (const std::vector<BufferClass>& raised : {std::vector{BufferClass::state}, all}) {
      Arrangement high = all_low();
      for (const BufferId b : movable_)
        if (std::count(raised.begin(), raised.end(), lowered.buffers[b].kind)) high.homes[b] = upper;
      const std::vector<uint64_t> fixed = without_movable(peaks(lowered, high), high);
      for (size_t t = 0; t < fixed.size(); ++t)
        fixed_with_upper_[t] = std::max(fixed_with_upper_[t], fixed[t]);
    }
}

uint64_t Least::home_bytes(BufferId buffer, TierId tier) const {
  return round_up(lowered_.buffers[buffer].bytes(), placement_alignment(lowered_.machine, tier));
}

Arrangement Least::all_low() const {
  return {std::vector<TierId>(lowered_.buffers.size(), lowest_),
          std::vector<uint32_t>(lowered_.machine.tiers.size(), 0), false};
}

std::vector<uint64_t> Least::without_movable(std::vector<uint64_t> peaks,
                                             const Arrangement& arrangement) const {
  for (const BufferId b : movable_) peaks[arrangement.homes[b]] -= home_bytes(b, arrangement.homes[b]);
  return peaks;
}

std::optional<Arrangement> Least::fill(const std::vector<uint64_t>& capacities, std::vector<uint64_t> used,
                                       TierId highest) const {
  for (size_t t = 0; t < used.size(); ++t)
    if (used[t] > capacities[t]) return std::nullopt;
  Arrangement a = all_low();
  TierId tier = lowest_;
  for (const BufferId b : movable_) {
    while (home_bytes(b, tier) > capacities[tier] - used[tier]) {
      if (tier == highest) return std::nullopt;
      tier = tier == lowest_ && memory_ < lowest_ ? memory_ : static_cast<TierId>(tier - 1);
    }
    a.homes[b] = tier;
    used[tier] += home_bytes(b, tier);
  }
  return a;
}

std::optional<Arrangement> Least::arrangement(const std::vector<uint64_t>& capacities) const {
  if (auto low = fill(capacities, fixed_low_, memory_)) return low;
  return memory_ > 0 ? fill(capacities, fixed_with_upper_, 0) : std::nullopt;
}

// The same arrangement again, one byte short of what this tier needs.
BodyShortage Least::largest_task(TierId tier) const {
  Program tight = lowered_;
  for (Tier& t : tight.machine.tiers) t.capacity = kPlenty;
  tight.machine.tiers[tier].capacity = together_[tier] - 1;
  const auto shortage = stage_all(tight, all_low());
  CHECK(shortage.has_value(), "one byte less than the peak is enough");
  return *shortage;
}

std::optional<uint64_t> Least::of_tier(TierId tier, std::vector<uint64_t> capacities) const {
  const auto suffices = [&](uint64_t bytes) {
    capacities[tier] = bytes;
    return arrangement(capacities).has_value();
  };
  uint64_t low = fixed_low_[tier], high = fixed_with_upper_[tier];
  for (const BufferId b : movable_) high += home_bytes(b, tier);
  if (!suffices(high)) return std::nullopt;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (suffices(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace sluice
