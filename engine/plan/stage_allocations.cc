#include <algorithm>
#include <numeric>

#include "engine/plan/staging.h"

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
        {use.storage, use.o.first, use.o.last, use.at, use.at, use.at, use.floor, use.fetches, {u}});
  }
  for (const Storage& s : tier_.storages)
    if (s.resident && !s.uses.empty()) join_resident(s);
  join_uses_of_residents();
  for (const uint32_t u : roots()) add_load(intervals_[u], 1);
}

void Allocations::join_resident(const Storage& storage) {
  Interval& whole = intervals_[storage.uses.front()];
  for (const uint32_t u : storage.uses) {  // pieces at the ends may never come here
    whole.first = std::min(whole.first, tier_.uses[u].o.first);
    whole.last = std::max(whole.last, tier_.uses[u].o.last);
  }
  whole.end = tier_.uses[storage.uses.back()].at;
  whole.uses = storage.uses;
}

void Allocations::join_uses_of_residents() {
  std::iota(parent_.begin(), parent_.end(), 0u);
  for (const Storage& s : tier_.storages)
    if (s.resident)
      for (const uint32_t u : s.uses) parent_[u] = s.uses.front();
}

void Allocations::start_over(bool with_leads) {
  intervals_ = singles_;
  join_uses_of_residents();
  load_ = RangeLoad(std::max(tier_.positions(), 1u));
  for (const uint32_t u : roots()) {
    Interval& i = intervals_[u];
    if (!with_leads && i.fetched) i.start = i.first_use_at;
    add_load(i, 1);
  }
}

void Allocations::choose() {
  if (tier_.options.lead > 0) lengthen();
  led_ = singles_ = intervals_;
  gap_kept_.assign(tier_.gaps.size(), true);
  keep_gaps();
}

void Allocations::choose_again(uint64_t room) {
  room_ = static_cast<int64_t>(room);
  singles_ = led_;
  start_over(true);
  for (Interval& i : intervals_)
    if (i.start < i.end && i.uses.size() == 1 && i.fetched && overloaded(i)) move_start(i, i.end);
  singles_ = intervals_;
  gap_kept_.assign(tier_.gaps.size(), true);
  keep_gaps();
}

bool Allocations::choose_without(const std::vector<uint32_t>& roots, uint32_t count) {
  bool any = false;
  for (const uint32_t u : roots) {
    const Interval& i = intervals_[u];
    any |= give_up_gaps(i, count) || give_up_leads(i, count);
  }
  start_over(true);
  keep_gaps();
  return any;
}

void Allocations::keep_gaps() {
  if (!tier_.options.keep) return;
  for (size_t g = 0; g < tier_.gaps.size(); ++g)
    gap_kept_[g] = gap_kept_[g] && keep_gap(tier_.gaps[g]);
}

bool Allocations::give_up_gaps(const Interval& in_the_way_of, uint32_t count) {
  const uint32_t before = count;
  for (size_t g = tier_.gaps.size(); g-- > 0 && count > 0;) {  // longest first
    const Gap& gap = tier_.gaps[g];
    if (!gap_kept_[g] || tier_.uses[gap.from].at > in_the_way_of.end ||
        tier_.uses[gap.to].at < in_the_way_of.start)
      continue;
    gap_kept_[g] = false;
    --count;
  }
  return count < before;
}

bool Allocations::give_up_leads(const Interval& in_the_way_of, uint32_t count) {
  std::vector<uint32_t> leads;
  for (uint32_t u = 0; u < singles_.size(); ++u) {
    const Interval& i = singles_[u];
    if (i.start < i.first_use_at && i.start <= in_the_way_of.end && i.first_use_at >= in_the_way_of.start)
      leads.push_back(u);
  }
  const auto length = [&](uint32_t u) { return singles_[u].first_use_at - singles_[u].start; };
  std::stable_sort(leads.begin(), leads.end(), [&](uint32_t a, uint32_t b) { return length(a) > length(b); });
  leads.resize(std::min<size_t>(leads.size(), count));
  for (const uint32_t u : leads) singles_[u].start = singles_[u].first_use_at;
  return !leads.empty();
}

void Allocations::choose_nothing() { start_over(false); }

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

void Allocations::move_start(Interval& i, uint32_t start) {
  add_load(i, -1);
  i.start = start;
  add_load(i, 1);
}

// In list order; where the whole lead has no room, half of it is tried, and so on.
void Allocations::lengthen() {
  const StageOptions& options = tier_.options;
  std::vector<uint64_t> elapsed(tier_.positions() + 1);  // weight of the tasks before a position
  for (uint32_t at = 0; at < tier_.positions(); ++at) {
    const uint32_t task = tier_.body.instructions[at].task;
    const uint32_t weight = task == kNoTask                ? 0
                            : options.task_weights.empty() ? 1
                                                           : options.task_weights[task];
    elapsed[at + 1] = elapsed[at] + weight;
  }
  for (const uint32_t u : roots()) {
    Interval& i = intervals_[u];
    if (!i.fetched) continue;
    for (uint32_t lead = options.lead; lead > 0; lead /= 2) {
      const uint64_t begin = elapsed[i.end] - std::min<uint64_t>(elapsed[i.end], lead);
      const auto last =
          std::upper_bound(elapsed.begin(), elapsed.begin() + i.end + 1, begin) - elapsed.begin();
      const uint32_t start = std::max(i.floor, static_cast<uint32_t>(last - 1));
      if (start >= i.start) break;
      const uint32_t old = i.start;
      move_start(i, start);
      if (!overloaded(i)) break;
      move_start(i, old);
    }
  }
}

// Joins the allocations at both ends of a gap, if there is room. The joint one begins as the earlier of them
// does.
bool Allocations::keep_gap(const Gap& gap) {
  uint32_t a = root(gap.from), b = root(gap.to);
  if (a == b) return true;
  if (intervals_[b].first_use_at < intervals_[a].first_use_at) std::swap(a, b);
  const Interval& later = intervals_[b];
  Interval both = intervals_[a];
  both.first = std::min(both.first, later.first);
  both.last = std::max(both.last, later.last);
  both.end = std::max(both.end, later.end);
  both.uses.insert(both.uses.end(), later.uses.begin(), later.uses.end());
  add_load(intervals_[a], -1);
  add_load(later, -1);
  add_load(both, 1);
  if (overloaded(both)) {
    add_load(both, -1);
    add_load(intervals_[a], 1);
    add_load(later, 1);
    return false;
  }
  parent_[b] = a;
  intervals_[a] = std::move(both);
  return true;
}

}  // namespace sluice::staging
