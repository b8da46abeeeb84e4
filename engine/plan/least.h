// The least memory with which a model can train: nothing prefetched, nothing kept, permanent buffers as low
// as they can be.
//
// 1. Homes fill the lowest tier, then the lowest memory tier, then those above it: weights, gradients,
//    state, one after the other, each where the one before left room. So only state rises above the lowest
//    memory tier, as long as everything else fits below, and is then updated there.
// 2. What tasks need beside homes is found by laying out a few arrangements without looking at capacities:
//    all homes as low as possible; all state in an upper tier; everything there. In none of them do two
//    copies of different tasks live at the same time, so that any mixture that step 1 makes needs no more.
// Whether capacities suffice is decided by these figures alone. They do not depend on capacities, and a later
// home never lies lower in less memory; so what fits in some memory fits in more, and the figures that an
// infeasible plan names are exact.
#pragma once

#include <optional>
#include <vector>

#include "engine/plan/assemble.h"
#include "engine/plan/lower.h"

namespace sluice {

class Least {
 public:
  // `lowered` has tasks only.
  explicit Least(const Program& lowered);

  // Homes and leads that need least, for these capacities (by tier); nullopt if they do not suffice.
  std::optional<Arrangement> arrangement(const std::vector<uint64_t>& capacities) const;

  // The least of one tier that works with the others as given; nullopt where that tier alone cannot mend it.
  std::optional<uint64_t> of_tier(TierId tier, std::vector<uint64_t> capacities) const;
  // The least of the top tier, then of the next one given that, and so on.
  const std::vector<uint64_t>& together() const { return together_; }

  // Bytes of a tier beside permanent homes that the largest task needs.
  uint64_t working_bytes(TierId tier) const { return together_[tier] - permanent_[tier]; }
  // The body and the task that need most of a tier, for messages.
  BodyShortage largest_task(TierId tier) const;

 private:
  uint64_t home_bytes(BufferId buffer, TierId tier) const;
  Arrangement all_low() const;
  std::vector<uint64_t> without_movable(std::vector<uint64_t> peaks, const Arrangement& arrangement) const;
  // Step 1, up to `highest`, where `used` bytes are taken by tier.
  std::optional<Arrangement> fill(const std::vector<uint64_t>& capacities, std::vector<uint64_t> used,
                                  TierId highest) const;

  const Program& lowered_;
  TierId memory_, lowest_;
  std::vector<BufferId> movable_;               // with a choice of home, in the order of step 1
  std::vector<uint64_t> together_, permanent_;  // by tier, with every home as low as it can be
  // By tier, beside movable homes: with none above memory_, with some.
  std::vector<uint64_t> fixed_low_, fixed_with_upper_;
};

}  // namespace sluice
