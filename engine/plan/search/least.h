// The least memory with which a model can train: nothing prefetched, nothing kept, homes as low as they can
// be.
//
// 1. Transient buffers live in the lowest tier. Where that does not suffice, some of them live higher, in the
//    few choices of raise.h.
// 2. Permanent homes fill the lowest tier, then the lowest memory tier, then the tiers above it. Weights come
//    first, then gradients, caches and state, each where the class before left room. So as long as all other
//    classes fit below, only state rises above the lowest memory tier, and is then updated there.
// 3. What tasks need beside permanent homes is found by laying out a few arrangements without looking at
//    capacities: all homes as low as possible; all state and caches in an upper tier; all movable homes in an
//    upper tier. In none of them are copies for two different tasks alive at once. So a mixture of them, as
//    step 2 makes, needs no more. Where bodies are long (kSegmentTasksWhole), only the first choice, which
//    raises nothing, is laid out so. For the other choices, transient buffers are laid out without the
//    transfers of permanent ones. In the top tier that makes no difference. In each tier between the top and
//    the lowest, what that tier needs under the first choice is added. Bodies without transient buffers may
//    need more in the lowest tier. They are not laid out again: what they need under the first choice counts.
//
// Capacities suffice if these figures fit into them for some choice of step 1. The figures do not depend on
// capacities, and with less memory, every home stays where it is or moves up. So what fits in some memory
// fits in more, and the figures that an infeasible plan names are exact.
#pragma once

#include <optional>
#include <vector>

#include "engine/plan/assemble/assemble.h"
#include "engine/plan/lower/lower.h"

namespace sluice {

class Least {
 public:
  // `lowered` has tasks only. It must outlive this.
  explicit Least(const Program& lowered);

  // The arrangement that needs least, for these capacities (by tier); nullopt if they do not suffice.
  std::optional<Arrangement> arrangement(const std::vector<uint64_t>& capacities) const;

  // Programs with at most this many forwards and backwards are laid out for every choice of step 1.
  static constexpr uint64_t kSegmentTasksWhole = 4000;

  // The least size of one tier that works with the other tiers as given; nullopt: `most` does not suffice.
  static constexpr uint64_t kPlenty = UINT64_MAX / 4;
  std::optional<uint64_t> of_tier(TierId tier, std::vector<uint64_t> capacities,
                                  uint64_t most = kPlenty) const;
  // By tier: the least size of the top tier; given that, the least of the next tier; and so on. The lowest
  // memory tier has at least `memory_bytes`.
  std::vector<uint64_t> together(uint64_t memory_bytes = 0) const;

  // Bytes of a tier while all homes are as low as they can be: what the largest task needs beside permanent
  // homes, and what permanent homes take.
  uint64_t working_bytes(TierId tier) const { return lowest_together_[tier] - permanent_[tier]; }
  uint64_t permanent_bytes(TierId tier) const { return permanent_[tier]; }
  // The body and the task that need most of a tier while permanent homes are as low as they can be. Messages
  // name them. Transient homes are those of the first choice of step 1 that suffices for these capacities, or
  // else of the choice that together() takes.
  BodyShortage largest_task(TierId tier, const std::vector<uint64_t>& capacities) const;

 private:
  struct Choice {               // of step 1
    std::vector<TierId> homes;  // with permanent ones in the lowest tier
    // Bytes by tier beside movable homes: `low` if no movable home lies above memory_, `with_upper` if some
    // do. Except for `low` of the first choice, both are empty until they are asked for. `with_upper` is not
    // less than `low`. `at_least` is a lower bound of `low` that is quickly computed.
    std::vector<uint64_t> at_least = {}, low = {}, with_upper = {};
  };

  uint64_t home_bytes(BufferId buffer, TierId tier) const;
  Arrangement arrangement_of(std::vector<TierId> homes) const;
  Arrangement with_raised(const Choice& choice, bool all, TierId tier) const;
  std::vector<uint64_t> without_movable(std::vector<uint64_t> peaks, const Arrangement& arrangement) const;
  void find_first_choice();
  // Lays `program` out. Raises `bytes` to what it needs beside movable homes, and `of_shards` to what its
  // bodies without transient buffers need.
  void add_peaks(Program& program, const Arrangement& arrangement, std::vector<uint64_t>& bytes,
                 std::vector<uint64_t>& of_shards) const;
  // As add_peaks(), for the arrangements in which some or all movable homes are above memory_.
  void add_upper_peaks(const Choice& choice, std::vector<uint64_t>& bytes,
                       std::vector<uint64_t>& of_shards) const;
  const Choice& first_with_upper() const;  // the first, with all its figures
  const std::vector<Choice>& choices() const;
  const Choice& with_low(size_t number) const;  // the choice, with its `low`
  const Choice& with_all(size_t number) const;  // with all its figures
  // By tier: the most bytes that any of these arrangements takes. Movable homes and the transfers of
  // permanent buffers are not counted.
  std::vector<uint64_t> transient_peaks(const std::vector<Arrangement>& arrangements) const;
  // In each tier between the top and the lowest, adds to `bytes` what the first choice needs there beside
  // permanent homes.
  void add_to_middle(std::vector<uint64_t>& bytes, const std::vector<uint64_t>& of_first) const;
  // Step 2, with homes up to the tier `highest`. `used`: bytes that are taken already, by tier.
  std::optional<Arrangement> fill(const Choice& choice, const std::vector<uint64_t>& capacities,
                                  std::vector<uint64_t> used, TierId highest) const;
  std::optional<Arrangement> arrangement(size_t choice, const std::vector<uint64_t>& capacities) const;
  std::optional<size_t> sufficient(const std::vector<uint64_t>& capacities) const;
  // Adds the movable homes, all in the lowest tier.
  std::vector<uint64_t> with_movable(std::vector<uint64_t> bytes) const;
  size_t lowest_choice() const;

  const Program& lowered_;
  TierId memory_, lowest_;
  std::vector<uint64_t> alignments_;     // of homes, by tier
  bool whole_;                           // every choice is laid out whole
  std::vector<BufferId> movable_;        // with a choice of home, in the order of step 2
  mutable std::vector<Choice> choices_;  // one until another is asked for, then all; the first raises nothing
  std::vector<uint64_t> lowest_together_, permanent_;  // by tier, with every home as low as it can be
  // As `low` and `with_upper` of the first choice, but of bodies without transient buffers only.
  std::vector<uint64_t> shards_low_;
  mutable std::vector<uint64_t> shards_with_upper_;
};

}  // namespace sluice
