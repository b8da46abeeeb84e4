// After step 5: what kept each fetched allocation from starting earlier, for notes.h.
#include <algorithm>
#include <tuple>

#include "engine/plan/stage/staging.h"

namespace sluice::staging {

namespace {

class Bounds {
 public:
  Bounds(const Allocations& allocations, const std::vector<uint32_t>& lead_starts)
      : allocations_(allocations), tier_(allocations.tier()), lead_starts_(lead_starts) {}

  std::vector<StartBound> run() {
    std::vector<StartBound> bounds(tier_.uses.size());
    std::vector<uint32_t> fetched;
    for (const uint32_t u : allocations_.roots())
      if (at(u).fetched) fetched.push_back(u);
    std::sort(fetched.begin(), fetched.end(), [&](uint32_t a, uint32_t b) {
      return std::tie(at(a).first_use_at, a) < std::tie(at(b).first_use_at, b);
    });
    uint32_t latest = kNever;  // of the fetches that are needed earlier, the one that starts last
    for (const uint32_t u : fetched) {
      const BufferId buffer = tier_.storages[at(u).storage].buffer;
      if (tier_.options.notes->wanted[buffer]) bounds[u] = bound_of(u, latest);
      if (latest == kNever || at(u).start >= at(latest).start) latest = u;
    }
    return bounds;
  }

 private:
  const Interval& at(uint32_t root) const { return allocations_.at_root(root); }
  BufferId buffer_at(uint32_t root) const { return tier_.storages[at(root).storage].buffer; }

  StartBound bound_of(uint32_t root, uint32_t latest) const {
    const Interval& i = at(root);
    StartBound bound{.lead_cut = lead_is_cut(root)};
    if (i.start == 0) return bound;
    if (tier_.uses[root].floor == i.start) {
      bound.bound = FetchBound::write;
    } else if (const uint32_t other = last_at_its_address(root); other != kNever) {
      bound.bound = FetchBound::address;
      bound.other = buffer_at(other);
    } else if (latest != kNever && at(latest).start >= i.start) {
      bound.bound = FetchBound::order;
      bound.other = buffer_at(latest);
    } else {
      bound.bound = FetchBound::lead;
    }
    return bound;
  }

  // An allocation at the same addresses that ends just before this one starts; kNever: there is none.
  uint32_t last_at_its_address(uint32_t root) const {
    const Interval& i = at(root);
    const uint64_t end = i.offset + allocations_.bytes(i);
    for (const uint32_t u : allocations_.roots())
      if (at(u).end + 1 == i.start && at(u).offset < end &&
          at(u).offset + allocations_.bytes(at(u)) > i.offset)
        return u;
    return kNever;
  }

  // Whether the allocation's lead covers less work than asked for, though it starts neither with the body nor
  // right after the last write of its content.
  bool lead_is_cut(uint32_t root) const {
    const uint32_t start = lead_starts_[root];
    if (start == 0 || start == tier_.uses[root].floor) return false;
    uint64_t covered = 0;
    for (uint32_t p = start; p < at(root).first_use_at; ++p) covered += task_cost(tier_, p);
    return covered < tier_.options.lead;
  }

  const Allocations& allocations_;
  const TierUses& tier_;
  const std::vector<uint32_t>& lead_starts_;
};

}  // namespace

std::vector<uint32_t> starts_of(const Allocations& allocations) {
  std::vector<uint32_t> starts(allocations.tier().uses.size(), kNever);
  for (const uint32_t u : allocations.roots()) starts[u] = allocations.at_root(u).start;
  return starts;
}

std::vector<StartBound> bounds_of(const Allocations& allocations, const std::vector<uint32_t>& lead_starts) {
  return Bounds(allocations, lead_starts).run();
}

}  // namespace sluice::staging
