#include <algorithm>
#include <tuple>

#include "engine/base/pack.h"
#include "engine/plan/stage/address_map.h"
#include "engine/plan/stage/staging.h"

namespace sluice::staging {

namespace {

// In the least arrangement, what transient buffers need at home must not depend on where permanent homes are
// (least.h). The number of transfers between two tasks depends on permanent homes, so this arrangement counts
// time in tasks.
std::vector<uint32_t> timeline(const TierUses& tier) {
  std::vector<uint32_t> time(tier.positions());
  uint32_t tasks = 0;
  for (uint32_t at = 0; at < time.size(); ++at) {
    time[at] = tier.least() ? tasks : at;
    if (tier.body.instructions[at].task != kNoTask) ++tasks;
  }
  return time;
}

// make_way() can use this many looks for one layout. Layouts of 60,000 allocations that succeeded took up to
// 1.6 million. Those that use up all looks would otherwise take minutes, and mostly fail.
constexpr uint64_t kLooks = 5'000'000;

struct Packing {
  uint64_t peak = 0;
  std::vector<uint32_t> roots;
  std::vector<PackItem> items;  // by root

  std::vector<uint32_t> unplaced() const {
    std::vector<uint32_t> list;
    for (size_t k = 0; k < items.size(); ++k)
      if (!items[k].placed) list.push_back(roots[k]);
    return list;
  }
};

Packing packed(const Allocations& allocations, uint64_t capacity, PackOrder order) {
  const std::vector<uint32_t> time = timeline(allocations.tier());
  Packing packing{0, allocations.roots(), {}};
  for (const uint32_t u : packing.roots) {
    const Interval& i = allocations.at_root(u);
    packing.items.push_back({time[i.start], time[i.end], allocations.bytes(i)});
  }
  packing.peak = pack(packing.items, allocations.tier().options.base, capacity, order);
  return packing;
}

void apply(const Packing& packing, Allocations& allocations) {
  for (size_t k = 0; k < packing.items.size(); ++k)
    allocations.at_root(packing.roots[k]).offset = packing.items[k].offset;
}

// Packed by size, or by breadth if that leaves fewer allocations unplaced.
Packing packed_either_way(const Allocations& allocations) {
  const uint64_t capacity = allocations.tier().options.capacity;
  Packing by_size = packed(allocations, capacity, PackOrder::by_size);
  if (by_size.unplaced().empty()) return by_size;
  Packing by_breadth = packed(allocations, capacity, PackOrder::by_breadth);
  return by_breadth.unplaced().size() < by_size.unplaced().size() ? by_breadth : by_size;
}

uint64_t peak_of(const Allocations& allocations) {
  uint64_t peak = allocations.tier().options.base;
  for (const uint32_t u : allocations.roots()) {
    const Interval& i = allocations.at_root(u);
    peak = std::max(peak, i.offset + allocations.bytes(i));
  }
  return peak;
}

// For the least arrangement, in a tier above the lowest. Buffers that live here are laid out by themselves.
// Beside them, each position has one block for all that is staged for it. If more homes are here, less is
// staged, and no block needs more.
uint64_t lay_out_in_blocks(Allocations& allocations) {
  const TierUses& tier = allocations.tier();
  const uint64_t base = tier.options.base;
  const std::vector<uint32_t> time = timeline(tier), roots = allocations.roots();
  const auto lives_here = [&](const Interval& i) {
    return tier.storages[i.storage].resident && tier.buffer_of(i.storage).kind != BufferClass::workspace;
  };
  std::vector<uint64_t> staged(tier.positions(), 0);
  std::vector<PackItem> residents, blocks;
  for (const uint32_t u : roots) {
    const Interval& i = allocations.at_root(u);
    if (lives_here(i))
      residents.push_back({time[i.start], time[i.end], allocations.bytes(i)});
    else
      staged[i.start] += allocations.bytes(i);
  }
  pack(residents, base, UINT64_MAX);
  size_t next = 0;
  for (const uint32_t u : roots) {
    Interval& i = allocations.at_root(u);
    if (!lives_here(i)) continue;
    i.offset = residents[next].offset;
    residents[next].start = i.start;
    residents[next++].last = i.end;
  }
  for (uint32_t at = 0; at < tier.positions(); ++at)
    if (staged[at] > 0) blocks.push_back({at, at, staged[at]});
  const uint64_t peak = pack(blocks, base, UINT64_MAX, PackOrder::by_size, residents);
  for (const PackItem& block : blocks) staged[block.start] = block.offset;
  for (const uint32_t u : roots) {
    Interval& i = allocations.at_root(u);
    if (lives_here(i)) continue;
    i.offset = staged[i.start];
    staged[i.start] += allocations.bytes(i);
  }
  return peak;
}

}  // namespace

uint64_t lay_out(Allocations& allocations) {
  const StageOptions& options = allocations.tier().options;
  if (allocations.tier().least() && options.tier < lowest_tier(allocations.tier().program.machine))
    return lay_out_in_blocks(allocations);
  uint64_t looks = kLooks;
  while (!allocations.tier().least() && looks > 0) {
    const Packing packing = packed_either_way(allocations);
    apply(packing, allocations);
    const std::optional<Interval> left = make_way(allocations, packing.unplaced(), looks);
    if (!left) return peak_of(allocations);
    if (!allocations.give_up_in_the_way_of(*left)) break;
    allocations.choose();
  }
  allocations.choose_nothing();
  const Packing packing = packed(allocations, UINT64_MAX, PackOrder::by_size);
  apply(packing, allocations);
  return packing.peak;
}

void grow_fetches(Allocations& allocations) {
  const TierUses& tier = allocations.tier();
  std::vector<uint32_t> roots = allocations.roots();
  const auto sort_by = [&](std::vector<uint32_t>& list, uint32_t Interval::*key) {
    std::sort(list.begin(), list.end(), [&](uint32_t a, uint32_t b) {
      return std::tie(allocations.at_root(a).*key, a) < std::tie(allocations.at_root(b).*key, b);
    });
  };
  sort_by(roots, &Interval::start);
  AddressMap ends;  // address -> first position at which nothing placed so far uses it
  std::vector<uint32_t> fetched;
  for (const uint32_t u : roots) {
    Interval& i = allocations.at_root(u);
    const uint64_t end = i.offset + allocations.bytes(i);
    i.floor = std::max(i.floor, ends.max(i.offset, end));
    ends.assign(i.offset, end, i.end + 1);
    // In the least arrangement, transient buffers leave the tier below when their task comes (timeline()).
    if (i.fetched && (!tier.least() || tier.buffer_of(i.storage).permanent)) fetched.push_back(u);
  }
  sort_by(fetched, &Interval::first_use_at);
  uint32_t latest = 0;
  for (const uint32_t u : fetched) {
    Interval& i = allocations.at_root(u);
    i.start = std::min(i.start, std::max(i.floor, latest));
    latest = std::max(latest, i.start);
  }
}

}  // namespace sluice::staging
