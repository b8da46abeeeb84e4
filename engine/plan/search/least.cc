#include "engine/plan/search/least.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/plan/search/raise.h"

namespace sluice {

namespace {

constexpr uint64_t kPlenty = UINT64_MAX / 4;

// Only the peaks stay: the transfers of this arrangement are the most that a program may have, and would take
// more memory than all else in planning.
std::optional<BodyShortage> stage_for_peaks(Program& lowered, const Arrangement& arrangement) {
  return stage_all(lowered, arrangement,
                   [](Body& body) { std::vector<Instruction>().swap(body.instructions); });
}

// The same without looking at capacities.
void stage_peaks(Program& lowered, const Arrangement& arrangement) {
  for (Tier& t : lowered.machine.tiers) t.capacity = kPlenty;
  CHECK(!stage_for_peaks(lowered, arrangement).has_value(), "plenty is not enough");
}

bool has_transient(const Program& program, const Body& body) {
  for (const Task& task : body.tasks)
    for (const Operand& o : task.operands) {
      const Buffer& b = program.buffers[o.buffer];
      if (!b.permanent && b.kind != BufferClass::workspace) return true;
    }
  return false;
}

void take_most(std::vector<uint64_t>& bytes, const std::vector<uint64_t>& others) {
  bytes.resize(std::max(bytes.size(), others.size()), 0);
  for (size_t t = 0; t < others.size(); ++t) bytes[t] = std::max(bytes[t], others[t]);
}

}  // namespace

Least::Least(const Program& lowered)
    : lowered_(lowered), memory_(lowest_memory_tier(lowered.machine)), lowest_(lowest_tier(lowered.machine)) {
  for (const BufferClass kind :
       {BufferClass::weights, BufferClass::gradients, BufferClass::caches, BufferClass::state})
    for (BufferId i = 0; i < lowered.buffers.size(); ++i)
      if (lowered.buffers[i].owns_home() && lowered.buffers[i].kind == kind) movable_.push_back(i);
  find_first_choice();
}

uint64_t Least::home_bytes(BufferId buffer, TierId tier) const {
  return round_up(lowered_.buffers[buffer].bytes(), placement_alignment(lowered_.machine, tier));
}

Arrangement Least::arrangement_of(std::vector<TierId> homes) const {
  return {std::move(homes), std::vector<uint32_t>(lowered_.machine.tiers.size(), 0), false};
}

// `all`: movable buffers; else only state and caches.
Arrangement Least::with_raised(const Choice& choice, bool all, TierId tier) const {
  Arrangement a = arrangement_of(choice.homes);
  for (const BufferId b : movable_) {
    const BufferClass kind = lowered_.buffers[b].kind;
    if (all || kind == BufferClass::state || kind == BufferClass::caches) a.homes[b] = tier;
  }
  return a;
}

std::vector<uint64_t> Least::without_movable(std::vector<uint64_t> peaks,
                                             const Arrangement& arrangement) const {
  for (const BufferId b : movable_) peaks[arrangement.homes[b]] -= home_bytes(b, arrangement.homes[b]);
  return peaks;
}

void Least::find_first_choice() {
  Choice first{std::vector<TierId>(lowered_.buffers.size(), lowest_)};
  Program p = lowered_;
  permanent_ = place_homes(p, first.homes);
  add_peaks(p, arrangement_of(first.homes), first.low, shards_low_);
  first.at_least = first.low;
  lowest_together_ = with_movable(first.low);
  choices_.push_back(std::move(first));
}

void Least::add_peaks(Program& p, const Arrangement& a, std::vector<uint64_t>& bytes,
                      std::vector<uint64_t>& of_shards) const {
  stage_peaks(p, a);
  take_most(bytes, without_movable(p.arena_bytes, a));
  for (const Body& body : p.bodies)
    if (!has_transient(p, body)) take_most(of_shards, without_movable(body.peak_bytes, a));
}

const Least::Choice& Least::first_with_upper() const {
  Choice& first = choices_.front();
  if (!first.with_upper.empty()) return first;
  first.with_upper = first.low;
  shards_with_upper_ = shards_low_;
  Program p = lowered_;
  for (TierId upper = 0; upper < memory_; ++upper)
    for (const bool all : {false, true})
      add_peaks(p, with_raised(first, all, upper), first.with_upper, shards_with_upper_);
  return first;
}

const std::vector<Least::Choice>& Least::choices() const {
  if (choices_.size() > 1 || lowest_ == 0) return choices_;
  const std::vector<Raised> all = raised_choices(lowered_.machine);
  const std::vector<BufferId> order = raisable(lowered_);
  for (auto raised = all.begin() + 1; raised != all.end(); ++raised) {
    Choice c{raised_homes(lowered_, order, *raised)};
    c.at_least = transient_bytes_at_least(lowered_, c.homes);
    add_to_middle(c.at_least, choices_.front().low);
    take_most(c.at_least, shards_low_);
    // What choice 0 needs in the top tier, every choice needs there.
    c.at_least[0] = std::max(c.at_least[0], choices_.front().low[0]);
    choices_.push_back(std::move(c));
  }
  return choices_;
}

const Least::Choice& Least::found(size_t number) const {
  choices();
  Choice& c = choices_[number];
  if (!c.low.empty()) return c;
  Program p = lowered_;
  for (Body& body : p.bodies)
    if (!has_transient(p, body)) body.tasks.clear();
  const auto bytes_of = [&](Arrangement a) {
    a.transient_only = true;
    stage_peaks(p, a);
    return without_movable(p.arena_bytes, a);
  };
  c.low = c.with_upper = bytes_of(arrangement_of(c.homes));
  for (TierId upper = 0; upper < memory_; ++upper)
    take_most(c.with_upper, bytes_of(with_raised(c, false, upper)));
  add_to_middle(c.low, choices_.front().low);
  add_to_middle(c.with_upper, first_with_upper().with_upper);
  take_most(c.low, shards_low_);
  take_most(c.with_upper, shards_with_upper_);
  return c;
}

void Least::add_to_middle(std::vector<uint64_t>& bytes, const std::vector<uint64_t>& of_first) const {
  for (TierId t = 1; t < lowest_; ++t) bytes[t] += of_first[t] - permanent_[t];
}

std::optional<Arrangement> Least::fill(const Choice& choice, const std::vector<uint64_t>& capacities,
                                       std::vector<uint64_t> used, TierId highest) const {
  for (size_t t = 0; t < used.size(); ++t)
    if (used[t] > capacities[t]) return std::nullopt;
  Arrangement a = arrangement_of(choice.homes);
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

std::optional<Arrangement> Least::arrangement(size_t choice, const std::vector<uint64_t>& capacities) const {
  if (choice > 0 && !fill(choices()[choice], capacities, choices()[choice].at_least, 0)) return std::nullopt;
  const Choice& c = choice > 0 ? found(choice) : choices_.front();
  if (auto low = fill(c, capacities, c.low, memory_)) return low;
  if (memory_ == 0) return std::nullopt;
  return fill(c, capacities, choice > 0 ? c.with_upper : first_with_upper().with_upper, 0);
}

std::optional<size_t> Least::sufficient(const std::vector<uint64_t>& capacities) const {
  if (arrangement(0, capacities)) return 0;
  for (size_t c = 1; c < choices().size(); ++c)
    if (arrangement(c, capacities)) return c;
  return std::nullopt;
}

std::optional<Arrangement> Least::arrangement(const std::vector<uint64_t>& capacities) const {
  const std::optional<size_t> choice = sufficient(capacities);
  return choice ? arrangement(*choice, capacities) : std::nullopt;
}

std::vector<uint64_t> Least::with_movable(std::vector<uint64_t> bytes) const {
  for (const BufferId b : movable_) bytes[lowest_] += home_bytes(b, lowest_);
  return bytes;
}

size_t Least::lowest_choice() const {
  size_t best = 0;
  for (size_t c = 1; c < choices().size(); ++c)
    if (choices_[c].at_least < choices_[best].low && found(c).low < choices_[best].low) best = c;
  return best;
}

std::vector<uint64_t> Least::together(uint64_t memory_bytes) const {
  std::vector<uint64_t> bytes = with_movable(choices()[lowest_choice()].low);
  bytes[memory_] = std::max(bytes[memory_], memory_bytes);
  for (TierId below = memory_ + 1; below <= lowest_; ++below) bytes[below] = *of_tier(below, bytes);
  return bytes;
}

// The same arrangement again, one byte short of what this tier needs.
BodyShortage Least::largest_task(TierId tier, const std::vector<uint64_t>& capacities) const {
  const size_t choice = sufficient(capacities).value_or(lowest_choice());
  const Arrangement a = arrangement_of(choices_[choice].homes);
  Program tight = lowered_;
  stage_peaks(tight, a);
  tight.machine.tiers[tier].capacity = tight.arena_bytes[tier] - 1;
  const auto shortage = stage_for_peaks(tight, a);
  CHECK(shortage.has_value(), "one byte less than the peak is enough");
  return *shortage;
}

std::optional<uint64_t> Least::of_tier(TierId tier, std::vector<uint64_t> capacities) const {
  const auto suffices = [&](uint64_t bytes) {
    capacities[tier] = bytes;
    return arrangement(capacities).has_value();
  };
  uint64_t low = 0, high = kPlenty;
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
