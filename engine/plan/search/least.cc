#include "engine/plan/search/least.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/plan/search/raise.h"

namespace sluice {

namespace {

// Only the peaks stay: the transfers of this arrangement are the most that a program may have, and would take
// more memory than all else in planning.
std::optional<BodyShortage> stage_for_peaks(Program& lowered, const Arrangement& arrangement) {
  return stage_all(lowered, arrangement,
                   [](Body& body) { std::vector<Instruction>().swap(body.instructions); });
}

// As stage_for_peaks(), with capacities that are always enough.
void stage_peaks(Program& lowered, const Arrangement& arrangement) {
  for (Tier& t : lowered.machine.tiers) t.capacity = Least::kPlenty;
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

uint64_t segment_tasks(const Program& program) {
  uint64_t tasks = 0;
  for (const Body& body : program.bodies)
    for (const Task& task : body.tasks) tasks += is_of_segment(task.kind);
  return tasks;
}

void take_most(std::vector<uint64_t>& bytes, const std::vector<uint64_t>& others) {
  bytes.resize(std::max(bytes.size(), others.size()), 0);
  for (size_t t = 0; t < others.size(); ++t) bytes[t] = std::max(bytes[t], others[t]);
}

}  // namespace

Least::Least(const Program& lowered)
    : lowered_(lowered),
      memory_(lowest_memory_tier(lowered.machine)),
      lowest_(lowest_tier(lowered.machine)),
      whole_(segment_tasks(lowered) <= kSegmentTasksWhole) {
  for (TierId t = 0; t <= lowest_; ++t) alignments_.push_back(placement_alignment(lowered.machine, t));
  for (const BufferClass kind :
       {BufferClass::weights, BufferClass::gradients, BufferClass::caches, BufferClass::state})
    for (BufferId i = 0; i < lowered.buffers.size(); ++i)
      if (lowered.buffers[i].owns_home() && lowered.buffers[i].kind == kind) movable_.push_back(i);
  find_first_choice();
}

uint64_t Least::home_bytes(BufferId buffer, TierId tier) const {
  return round_up(lowered_.buffers[buffer].bytes(), alignments_[tier]);
}

Arrangement Least::arrangement_of(std::vector<TierId> homes) const {
  return {std::move(homes), std::vector<uint32_t>(lowered_.machine.tiers.size(), 0), false};
}

// `all`: raises all movable buffers; else only state and caches.
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
  add_upper_peaks(first, first.with_upper, shards_with_upper_);
  return first;
}

void Least::add_upper_peaks(const Choice& choice, std::vector<uint64_t>& bytes,
                            std::vector<uint64_t>& of_shards) const {
  Program p = lowered_;
  for (TierId upper = 0; upper < memory_; ++upper)
    for (const bool all : {false, true}) add_peaks(p, with_raised(choice, all, upper), bytes, of_shards);
}

const std::vector<Least::Choice>& Least::choices() const {
  if (choices_.size() > 1 || lowest_ == 0) return choices_;
  const std::vector<Raised> all = raised_choices(lowered_.machine);
  const std::vector<BufferId> order = raisable(lowered_);
  for (auto raised = all.begin() + 1; raised != all.end(); ++raised) {
    Choice c{raised_homes(lowered_, order, *raised)};
    c.at_least = transient_bytes_at_least(lowered_, c.homes);
    if (!whole_) add_to_middle(c.at_least, choices_.front().low);
    take_most(c.at_least, shards_low_);
    // In the top tier, every choice needs at least what choice 0 needs.
    c.at_least[0] = std::max(c.at_least[0], choices_.front().low[0]);
    choices_.push_back(std::move(c));
  }
  return choices_;
}

std::vector<uint64_t> Least::transient_peaks(const std::vector<Arrangement>& arrangements) const {
  Program p = lowered_;
  for (Body& body : p.bodies)
    if (!has_transient(p, body)) body.tasks.clear();
  std::vector<uint64_t> bytes;
  for (Arrangement a : arrangements) {
    a.transient_only = true;
    stage_peaks(p, a);
    take_most(bytes, without_movable(p.arena_bytes, a));
  }
  return bytes;
}

const Least::Choice& Least::with_low(size_t number) const {
  if (number == 0) return choices_.front();
  choices();
  Choice& c = choices_[number];
  if (!c.low.empty()) return c;
  if (whole_) {
    Program p = lowered_;
    std::vector<uint64_t> of_shards;
    add_peaks(p, arrangement_of(c.homes), c.low, of_shards);
    return c;
  }
  c.low = transient_peaks({arrangement_of(c.homes)});
  add_to_middle(c.low, choices_.front().low);
  take_most(c.low, shards_low_);
  return c;
}

const Least::Choice& Least::with_all(size_t number) const {
  if (number == 0) return first_with_upper();
  choices();
  Choice& c = choices_[number];
  if (!c.with_upper.empty()) return c;
  if (whole_) {
    std::vector<uint64_t> upper = with_low(number).low, of_shards;
    add_upper_peaks(c, upper, of_shards);
    c.with_upper = std::move(upper);
    return c;
  }
  std::vector<Arrangement> arrangements{arrangement_of(c.homes)};
  for (TierId upper = 0; upper < memory_; ++upper) arrangements.push_back(with_raised(c, false, upper));
  c.with_upper = transient_peaks(arrangements);
  add_to_middle(c.with_upper, first_with_upper().with_upper);
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
  const Choice& quick = choices_[choice];
  if (!fill(quick, capacities, quick.at_least, 0)) return std::nullopt;
  const Choice& c = with_low(choice);
  if (auto low = fill(c, capacities, c.low, memory_)) return low;
  if (memory_ == 0 || !fill(c, capacities, c.low, 0)) return std::nullopt;
  return fill(c, capacities, with_all(choice).with_upper, 0);
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
    if (choices_[c].at_least < choices_[best].low && with_low(c).low < choices_[best].low) best = c;
  return best;
}

std::vector<uint64_t> Least::together(uint64_t memory_bytes) const {
  std::vector<uint64_t> bytes = with_movable(choices()[lowest_choice()].low);
  bytes[memory_] = std::max(bytes[memory_], memory_bytes);
  for (TierId below = memory_ + 1; below <= lowest_; ++below) bytes[below] = *of_tier(below, bytes);
  return bytes;
}

// Stages the arrangement again with one byte less in this tier than it needs: the shortage names the task.
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

// Lays choices out in order of what they seem to need, until none of the rest can need less.
std::optional<uint64_t> Least::of_tier(TierId tier, std::vector<uint64_t> capacities, uint64_t most) const {
  const auto least_bytes = [&](const auto& suffices) -> std::optional<uint64_t> {
    uint64_t low = 0, high = capacities[tier] = most;
    if (!suffices()) return std::nullopt;
    while (low < high) {
      capacities[tier] = low + (high - low) / 2;
      if (suffices())
        high = capacities[tier];
      else
        low = capacities[tier] + 1;
    }
    return low;
  };
  std::vector<std::pair<uint64_t, size_t>> seeming;  // bytes, choice
  for (size_t c = 0; c < choices().size(); ++c) {
    const auto may_suffice = [&] {
      return fill(choices_[c], capacities, choices_[c].at_least, 0).has_value();
    };
    if (const auto bytes = least_bytes(may_suffice)) seeming.emplace_back(*bytes, c);
  }
  std::sort(seeming.begin(), seeming.end());
  std::optional<uint64_t> least;
  for (const std::pair<uint64_t, size_t>& next : seeming) {
    if (least && next.first >= *least) break;
    const auto bytes = least_bytes([&] { return arrangement(next.second, capacities).has_value(); });
    if (bytes) least = std::min(*bytes, least.value_or(*bytes));
  }
  return least;
}

}  // namespace sluice
