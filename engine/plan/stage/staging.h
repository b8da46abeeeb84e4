// Inside of stage: one tier of one body as plain data, passed from step to step. The steps are those of
// stage.h.
//
// 1. collect_uses (uses.cc): operands in this tier, what happens to their storage elsewhere, and the gaps
//    between uses over which a copy would stay valid.
// 2. and 3. Allocations (allocations.cc): which uses share an allocation, and from when to when; bytes at
//    every position.
// 4. and 5. lay_out, grow_fetches (layout.cc), make_way (make_way.cc): addresses, then earlier starts where
//    addresses allow them.
// 6. emit (emit.cc): the list with transfers.
//
// Positions are indices into Body::instructions as they were before this tier was staged; uses, allocations
// and storages are named by index. For the files of stage only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/pack.h"
#include "engine/base/range_load.h"
#include "engine/plan/stage/stage.h"
#include "engine/program/program.h"

namespace sluice::staging {

constexpr uint32_t kNever = UINT32_MAX;

struct Use {         // one operand in this tier whose storage is not a permanent home here
  uint32_t at;       // position
  uint32_t operand;  // of the instruction there
  Operand o;
  uint32_t storage = 0;
  uint32_t floor = 0;    // its fetches cannot stand before this position
  bool fetches = false;  // some piece must be fetched if the allocation begins here
};

struct AwayEvent {  // a touch of the storage in a tier that it is staged from
  uint32_t at;
  Operand o;
};

struct Storage {  // a buffer, one slot of a ring buffer, or one task's workspace
  BufferId buffer = 0;
  bool resident = false;  // transient with its home here
  TierId away = 0;        // where copies come from and go to: the tier below, or a home above
  std::vector<uint32_t> uses;
  std::vector<AwayEvent> events;
};

struct Gap {          // from one use to the next that reads some of the same pieces
  uint32_t from, to;  // uses
  uint32_t length;    // in positions
};

struct TierUses {
  const Program& program;
  const Body& body;
  const StageOptions& options;
  uint64_t alignment;  // of allocations
  std::vector<Storage> storages;
  std::vector<Use> uses;  // in list order
  std::vector<Gap> gaps;  // shortest first

  // By buffer that is an index (Pick): the positions at which it is written, in any tier.
  std::map<BufferId, std::vector<uint32_t>> index_writes = {};

  uint32_t positions() const { return static_cast<uint32_t>(body.instructions.size()); }
  const Buffer& buffer_of(uint32_t storage) const { return program.buffers[storages[storage].buffer]; }
  // The arrangement that needs least memory (search/least.h). Its layout must not depend on the capacity.
  bool least() const { return !options.keep && options.lead == 0; }
};

struct Interval {  // the life of one allocation
  uint32_t storage = 0;
  uint32_t first = 0, last = 0;  // pieces
  uint32_t start = 0, end = 0;   // positions, inclusive
  uint32_t first_use_at = 0, last_use_at = 0;
  uint32_t floor = 0;                              // its start cannot be before this position
  bool fetched = false;                            // begins with a fetch
  uint32_t first_use = kNever, last_use = kNever;  // of a chain in Allocations
  uint64_t offset = 0;                             // by lay_out

  bool leads() const { return start < first_use_at; }
  bool lags() const { return end > last_use_at; }
};

// A partition of the uses into allocations. An allocation is named by one of its uses, its root.
class Allocations {
 public:
  // Makes an allocation of each use, but only one of all uses of a resident storage. None has a lead or a
  // lag. `uses` must outlive this.
  explicit Allocations(const TierUses& uses);

  // Chooses leads, lags, then kept gaps, as far as the tier has room, except for those that were given up.
  void choose();
  // For the next choose(), gives up leads, lags and gaps that share a position with `one`. Returns false if
  // there were none.
  bool give_up_in_the_way_of(const Interval& one);
  // Back to what the constructor made.
  void choose_nothing();

  // Whether the allocation cannot leave the positions [from, to].
  bool needs(const Interval& i, uint32_t from, uint32_t to) const;
  // Makes the allocation leave the positions: its lead or lag becomes shorter, or it splits into parts, which
  // keep its offset. Returns the roots of what is left.
  std::vector<uint32_t> leave(uint32_t root, uint32_t from, uint32_t to);
  // Gives up all gaps of the allocation. Returns the roots of its parts.
  std::vector<uint32_t> leave_gaps(uint32_t root);

  const TierUses& tier() const { return tier_; }
  std::vector<uint32_t> roots() const;  // ascending
  uint32_t root(uint32_t use) const {
    while (parent_[use] != use) use = parent_[use] = parent_[parent_[use]];
    return use;
  }
  Interval& at_root(uint32_t root) { return intervals_[root]; }
  const Interval& at_root(uint32_t root) const { return intervals_[root]; }
  const Interval& of_use(uint32_t use) const { return intervals_[root(use)]; }
  uint64_t bytes(const Interval& i) const {
    const Buffer& b = tier_.buffer_of(i.storage);
    return round_up(b.cuts[i.last] - b.cuts[i.first], tier_.alignment);
  }
  uint64_t most_bytes() const;  // at any position, beside permanent homes

  // A shortage that names the task at the position of the largest load, or the next task if none is there.
  Shortage shortage(uint64_t bytes_needed) const;

 private:
  void join_resident(const Storage& storage);
  void join_uses_of_residents();
  void start_over();
  void add_load(const Interval& i, int sign);
  void move(Interval& i, uint32_t start, uint32_t end);
  bool passes_on(const Interval& i) const;
  template <typename Reach>
  void try_reaches(Interval& i, Reach reach);
  bool overloaded(const Interval& i) const { return load_.max(i.start, i.end) > room_; }
  void reach_out();
  void keep_gaps();
  bool keep_gap(const Gap& gap);
  Interval joint(uint32_t earlier, uint32_t later) const;
  void order(uint32_t& earlier, uint32_t& later) const;
  void join(uint32_t earlier, uint32_t later);
  std::vector<uint32_t> uses_of(const Interval& i) const;
  std::vector<uint32_t> split(uint32_t root, const std::function<bool(const Gap&)>& given_up);
  std::span<const uint32_t> gaps_from(uint32_t use) const;

  const TierUses& tier_;
  int64_t room_;                            // bytes that allocations may take together
  RangeLoad load_;                          // by position
  mutable std::vector<uint32_t> parent_;    // union-find over uses; paths are shortened by lookups
  std::vector<Interval> intervals_;         // by root
  std::vector<uint32_t> next_use_;          // of the same allocation, by use; kNever ends it
  std::vector<Interval> singles_;           // without leads and lags, before any gap was kept
  std::vector<bool> gap_kept_, gap_lost_;   // by gap; what was given up is lost
  std::vector<uint32_t> gaps_by_from_;      // in order of the use that they begin at
  std::vector<bool> lead_lost_, lag_lost_;  // by root
};

// Cost of the task at a position, in which leads are counted; a transfer has none.
inline uint32_t task_cost(const TierUses& tier, uint32_t position) {
  const uint32_t task = tier.body.instructions[position].task;
  if (task == kNoTask) return 0;
  return tier.options.task_costs.empty() ? 1 : tier.options.task_costs[task];
}

// For StageOptions::notes: by root, why a fetched allocation starts where it does.
struct StartBound {
  FetchBound bound = FetchBound::begin;
  BufferId other = 0;
  bool lead_cut = false;
};
std::vector<uint32_t> starts_of(const Allocations& allocations);  // by root; kNever for others
std::vector<StartBound> bounds_of(const Allocations& allocations, const std::vector<uint32_t>& lead_starts);

// Steps 1, 4, 5 and 6.
TierUses collect_uses(const Program& program, const Body& body, const StageOptions& options);
// Returns the peak, with permanent homes. If it is above the capacity, the body does not fit.
uint64_t lay_out(Allocations& allocations);
void grow_fetches(Allocations& allocations);
// Gives all of the `unplaced` roots places beside the others. Returns an allocation that can have no place,
// or has none when `looks` are used up. One look is at one allocation that may be in the way of another.
std::optional<Interval> make_way(Allocations& allocations, std::vector<uint32_t> unplaced, uint64_t& looks);
// `body` is the one that the uses were collected from. Fetches are noted if `bounds` is not empty.
void emit(const Allocations& allocations, const std::vector<StartBound>& bounds, Body& body);

}  // namespace sluice::staging
