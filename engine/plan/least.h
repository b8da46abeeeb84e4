// The least memory with which a model can train: nothing prefetched, nothing kept, permanent buffers as low
// as they can be.
//
// The arrangement does not depend on capacities (stage lays it out without looking at them), so what fits in
// some memory fits in more, and the figures that an infeasible plan names are exact.
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
  std::vector<uint64_t> together() const { return peaks_; }

  // Bytes of a tier beside permanent homes that the largest task needs.
  uint64_t working_bytes(TierId tier) const { return peaks_[tier] - permanent_[tier]; }
  // The body and the task that need most of a tier, for messages.
  BodyShortage largest_task(TierId tier) const;

 private:
  struct Split {
    std::vector<TierId> homes;
    uint64_t memory_bytes = 0;  // of homes that found no room in the lowest tier
  };
  Split split_homes(uint64_t lowest_capacity) const;
  Arrangement all_low() const;
  uint64_t needed(TierId tier, const std::vector<uint64_t>& capacities) const;

  const Program& lowered_;
  TierId memory_, lowest_;
  std::vector<uint64_t> peaks_, permanent_;  // by tier, with every home as low as it can be
};

}  // namespace sluice
