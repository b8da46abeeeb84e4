#include <algorithm>
#include <numeric>

#include "engine/plan/stage/staging.h"

namespace sluice::staging {

Allocations::Allocations(const TierUses& uses)
    : tier_(uses),
      room_(static_cast<int64_t>(uses.options.capacity) - static_cast<int64_t>(uses.options.base)),
      load_(std::max(uses.positions(), 1u)),
      parent_(uses.uses.size()) {
  intervals_.reserve(tier_.uses.size());
  for (uint32_t u = 0; u < tier_.uses.size(); ++u) {
    const Use& use = tier_.uses[u];
    intervals_.push_back(
        {use.storage, use.o.first, use.o.last, use.at, use.at, use.at, use.at, use.floor, use.fetches, u, u});
  }
  for (const Storage& s : tier_.storages)
    if (s.resident && !s.uses.empty()) join_resident(s);
  singles_ = intervals_;
  gap_kept_.assign(tier_.gaps.size(), false);
  gap_lost_.assign(tier_.gaps.size(), false);
  lead_lost_.assign(intervals_.size(), false);
  lag_lost_ = lead_lost_;
  gaps_by_from_.resize(tier_.gaps.size());
  std::iota(gaps_by_from_.begin(), gaps_by_from_.end(), 0u);
  std::stable_sort(gaps_by_from_.begin(), gaps_by_from_.end(),
                   [&](uint32_t a, uint32_t b) { return tier_.gaps[a].from < tier_.gaps[b].from; });
  start_over();
}

std::span<const uint32_t> Allocations::gaps_from(uint32_t use) const {
  const auto [begin, end] =
      std::ranges::equal_range(gaps_by_from_, use, {}, [&](uint32_t g) { return tier_.gaps[g].from; });
  return {begin, end};
}

void Allocations::join_resident(const Storage& storage) {
  Interval& whole = intervals_[storage.uses.front()];
  for (const uint32_t u : storage.uses) {  // pieces at the ends may never come here
    whole.first = std::min(whole.first, tier_.uses[u].o.first);
    whole.last = std::max(whole.last, tier_.uses[u].o.last);
  }
  whole.end = whole.last_use_at = tier_.uses[storage.uses.back()].at;
  whole.last_use = storage.uses.back();
}

void Allocations::join_uses_of_residents() {
  std::iota(parent_.begin(), parent_.end(), 0u);
  next_use_.assign(parent_.size(), kNever);
  for (const Storage& s : tier_.storages)
    if (s.resident)
      for (size_t k = 0; k < s.uses.size(); ++k) {
        parent_[s.uses[k]] = s.uses.front();
        if (k > 0) next_use_[s.uses[k - 1]] = s.uses[k];
      }
}

void Allocations::start_over() {
  intervals_ = singles_;
  join_uses_of_residents();
  load_ = RangeLoad(std::max(tier_.positions(), 1u));
  for (const uint32_t u : roots()) add_load(intervals_[u], 1);
}

void Allocations::choose() {
  if (tier_.least()) return;  // as the constructor made it
  start_over();
  if (tier_.options.lead > 0) reach_out();
  if (tier_.options.keep) keep_gaps();
}

void Allocations::keep_gaps() {
  for (size_t g = 0; g < tier_.gaps.size(); ++g) gap_kept_[g] = !gap_lost_[g] && keep_gap(tier_.gaps[g]);
}

bool Allocations::give_up_in_the_way_of(const Interval& one) {
  bool any = false;
  for (size_t g = 0; g < tier_.gaps.size(); ++g) {
    const Gap& gap = tier_.gaps[g];
    if (!gap_kept_[g] || tier_.uses[gap.from].at > one.end || tier_.uses[gap.to].at < one.start) continue;
    any = true;
    gap_lost_[g] = true;
  }
  for (const uint32_t u : roots()) {
    const Interval& i = intervals_[u];
    if (i.leads() && i.start <= one.end && i.first_use_at >= one.start) any = lead_lost_[u] = true;
    if (i.lags() && i.last_use_at <= one.end && i.end >= one.start) any = lag_lost_[u] = true;
  }
  return any;
}

bool Allocations::needs(const Interval& i, uint32_t from, uint32_t to) const {
  if (to < i.first_use_at || from > i.last_use_at) return false;
  if (tier_.storages[i.storage].resident) return true;
  for (uint32_t u = i.first_use; u != kNever; u = next_use_[u])
    if (tier_.uses[u].at >= from && tier_.uses[u].at <= to) return true;
  return false;
}

std::vector<uint32_t> Allocations::leave(uint32_t root, uint32_t from, uint32_t to) {
  Interval& whole = intervals_[root];
  if (whole.first_use_at > to || whole.last_use_at < from) {
    move(whole, whole.first_use_at > to ? to + 1 : whole.start,
         whole.last_use_at < from ? from - 1 : whole.end);
    return {root};
  }
  return split(
      root, [&](const Gap& gap) { return tier_.uses[gap.from].at <= to && tier_.uses[gap.to].at >= from; });
}

std::vector<uint32_t> Allocations::leave_gaps(uint32_t root) {
  return split(root, [](const Gap&) { return true; });
}

std::vector<uint32_t> Allocations::split(uint32_t root, const std::function<bool(const Gap&)>& given_up) {
  const Interval whole = intervals_[root];
  const std::vector<uint32_t> uses = uses_of(whole);
  std::vector<uint32_t> kept;
  for (const uint32_t u : uses)
    for (const uint32_t g : gaps_from(u)) {
      if (!gap_kept_[g]) continue;
      gap_kept_[g] = !given_up(tier_.gaps[g]);
      if (gap_kept_[g]) kept.push_back(g);
    }
  std::sort(kept.begin(), kept.end());
  add_load(whole, -1);
  for (const uint32_t u : uses) {
    parent_[u] = u;
    next_use_[u] = kNever;
    intervals_[u] = singles_[u];
    intervals_[u].offset = whole.offset;
    if (u == root) intervals_[u].start = whole.start;
  }
  for (const uint32_t g : kept) {
    uint32_t a = this->root(tier_.gaps[g].from), b = this->root(tier_.gaps[g].to);
    order(a, b);
    if (a != b) join(a, b);
  }
  std::vector<uint32_t> parts;
  for (const uint32_t u : uses)
    if (parent_[u] == u) parts.push_back(u);
  for (const uint32_t u : parts) add_load(intervals_[u], 1);
  return parts;
}

void Allocations::choose_nothing() {
  if (!tier_.least()) start_over();
}

std::vector<uint32_t> Allocations::roots() const {
  std::vector<uint32_t> all;
  for (uint32_t u = 0; u < parent_.size(); ++u)
    if (parent_[u] == u) all.push_back(u);
  return all;
}

uint64_t Allocations::most_bytes() const {
  return tier_.positions() == 0 ? 0 : static_cast<uint64_t>(load_.max(0, tier_.positions() - 1));
}

Shortage Allocations::shortage(uint64_t bytes_needed) const {
  const int64_t most = load_.max(0, tier_.positions() - 1);
  uint32_t at = 0;
  while (load_.max(at, at) < most) ++at;
  while (at + 1 < tier_.positions() && tier_.body.instructions[at].task == kNoTask) ++at;
  return {tier_.options.tier, tier_.body.instructions[at].task, bytes_needed};
}

void Allocations::add_load(const Interval& i, int sign) {
  load_.add(i.start, i.end, sign * static_cast<int64_t>(bytes(i)));
}

void Allocations::move(Interval& i, uint32_t start, uint32_t end) {
  add_load(i, -1);
  i.start = start;
  i.end = end;
  add_load(i, 1);
}

// Whether a lane other than the one that writes the content reads it.
bool Allocations::passes_on(const Interval& i) const {
  const Storage& s = tier_.storages[i.storage];
  const auto lane = [&](uint32_t u) { return tier_.body.instructions[tier_.uses[u].at].lane; };
  if (i.fetched || tier_.buffer_of(i.storage).kind == BufferClass::workspace) return false;
  if (!s.resident) return true;
  return std::any_of(s.uses.begin(), s.uses.end(),
                     [&](uint32_t u) { return lane(u) != lane(s.uses.front()); });
}

// `reach(work)` returns the start and end of the allocation with a lead or lag of `work`. Where there is no
// room for all of the work, half of it is tried, then a quarter, and so on.
template <typename Reach>
void Allocations::try_reaches(Interval& i, Reach reach) {
  const uint32_t start = i.start, end = i.end;
  for (uint32_t work = tier_.options.lead; work > 0; work /= 2) {
    const auto [earlier, later] = reach(work);
    if (earlier >= start && later <= end) return;
    move(i, std::min(start, earlier), std::max(end, later));
    if (!overloaded(i)) return;
    move(i, start, end);
  }
}

// Adds leads to what is fetched and lags to what is passed on, in list order.
void Allocations::reach_out() {
  std::vector<uint64_t> elapsed(tier_.positions() + 1);  // cost of the tasks before a position
  for (uint32_t at = 0; at < tier_.positions(); ++at) elapsed[at + 1] = elapsed[at] + task_cost(tier_, at);
  const auto position = [&](uint64_t cost) {  // the last position before which tasks cost at most this
    return static_cast<uint32_t>(std::upper_bound(elapsed.begin(), elapsed.end(), cost) - elapsed.begin() -
                                 1);
  };
  for (const uint32_t u : roots()) {
    Interval& i = intervals_[u];
    if (i.fetched && !lead_lost_[u])
      try_reaches(i, [&](uint32_t lead) {
        const uint64_t begin = elapsed[i.last_use_at] - std::min<uint64_t>(elapsed[i.last_use_at], lead);
        return std::pair(std::max(i.floor, std::min(position(begin), i.last_use_at)), i.last_use_at);
      });
    if (passes_on(i) && !lag_lost_[u])
      try_reaches(i, [&](uint32_t lag) {
        return std::pair(i.first_use_at, position(elapsed[i.last_use_at + 1] + lag) - 1);
      });
  }
}

void Allocations::order(uint32_t& earlier, uint32_t& later) const {
  if (intervals_[later].first_use_at < intervals_[earlier].first_use_at) std::swap(earlier, later);
}

// Returns one allocation in place of the two, without their uses. Its start is that of the earlier one.
Interval Allocations::joint(uint32_t earlier, uint32_t later) const {
  const Interval &a = intervals_[earlier], &b = intervals_[later];
  Interval both{.storage = a.storage};
  both.first = std::min(a.first, b.first);
  both.last = std::max(a.last, b.last);
  both.start = a.start;
  both.end = std::max(a.end, b.end);
  both.first_use_at = a.first_use_at;
  both.last_use_at = std::max(a.last_use_at, b.last_use_at);
  both.floor = a.floor;
  both.fetched = a.fetched;
  both.offset = a.offset;
  return both;
}

void Allocations::join(uint32_t earlier, uint32_t later) {
  Interval both = joint(earlier, later);
  both.first_use = intervals_[earlier].first_use;
  both.last_use = intervals_[later].last_use;
  next_use_[intervals_[earlier].last_use] = intervals_[later].first_use;
  intervals_[earlier] = both;
  parent_[later] = earlier;
}

std::vector<uint32_t> Allocations::uses_of(const Interval& i) const {
  std::vector<uint32_t> uses;
  for (uint32_t u = i.first_use; u != kNever; u = next_use_[u]) uses.push_back(u);
  return uses;
}

// Joins the allocations at both ends of a gap, if there is room.
bool Allocations::keep_gap(const Gap& gap) {
  uint32_t a = root(gap.from), b = root(gap.to);
  if (a == b) return true;
  order(a, b);
  const Interval both = joint(a, b);
  add_load(intervals_[a], -1);
  add_load(intervals_[b], -1);
  add_load(both, 1);
  if (!overloaded(both)) {
    join(a, b);
    return true;
  }
  add_load(both, -1);
  add_load(intervals_[a], 1);
  add_load(intervals_[b], 1);
  return false;
}

}  // namespace sluice::staging
