// Step 4 for allocations that packing has left without a place: each gets the place that costs least, the
// largest first. What is in the way there gives up leads, lags or kept gaps or, if it is in use, looks for
// another place. The allocation without a place gives up its own lead, lag or gaps instead, if that costs
// less. All others stay where they are.
#include <algorithm>
#include <compare>
#include <tuple>
#include <utility>

#include "engine/plan/stage/staging.h"

namespace sluice::staging {

namespace {

struct Cost {
  uint32_t fixed = 0;       // allocations that can neither leave nor move: there is no way
  uint64_t moved = 0;       // bytes that get another place, since they cannot leave
  uint64_t gap_bytes = 0;   // fetched once more
  uint64_t lead_bytes = 0;  // fetched later, or in the way of another lane
  auto operator<=>(const Cost&) const = default;

  Cost& operator+=(const Cost& o) {
    fixed += o.fixed;
    moved += o.moved;
    gap_bytes += o.gap_bytes;
    lead_bytes += o.lead_bytes;
    return *this;
  }
  Cost operator-(const Cost& o) const {
    return {fixed - o.fixed, moved - o.moved, gap_bytes - o.gap_bytes, lead_bytes - o.lead_bytes};
  }
};

constexpr uint32_t kMovesMax = 3;  // of an allocation

struct Window {
  Cost cost;
  uint64_t offset = 0;
};

// Costs by address; gives the sum of the costs below any address.
class CostsBelow {
 public:
  void add(uint64_t address, const Cost& cost) { list_.push_back({address, cost}); }
  void finish() {
    std::sort(list_.begin(), list_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t k = 1; k < list_.size(); ++k) list_[k].second += list_[k - 1].second;
  }
  // Sum of the costs at lower addresses.
  Cost below(uint64_t address) const {
    const auto at = std::lower_bound(list_.begin(), list_.end(), address,
                                     [](const auto& entry, uint64_t a) { return entry.first < a; });
    return at == list_.begin() ? Cost{} : std::prev(at)->second;
  }
  const std::vector<std::pair<uint64_t, Cost>>& list() const { return list_; }

 private:
  std::vector<std::pair<uint64_t, Cost>> list_;
};

// Roots by the positions at which they live. Roots that are gone, or whose lives were shortened, may still be
// found.
class ByTime {
 public:
  ByTime(uint32_t positions, size_t roots) : blocks_(positions / kBlock + 1), found_(roots, 0) {}

  void add(uint32_t root, const Interval& i) {
    for (uint32_t b = i.start / kBlock; b <= i.end / kBlock; ++b) blocks_[b].push_back(root);
  }
  // Roots that may share a position with `i`: each once, ascending.
  std::vector<uint32_t> near(const Interval& i) {
    ++searches_;
    std::vector<uint32_t> list;
    for (uint32_t b = i.start / kBlock; b <= i.end / kBlock; ++b)
      for (const uint32_t u : blocks_[b])
        if (std::exchange(found_[u], searches_) != searches_) list.push_back(u);
    std::sort(list.begin(), list.end());
    return list;
  }

 private:
  static constexpr uint32_t kBlock = 64;  // positions
  std::vector<std::vector<uint32_t>> blocks_;
  std::vector<uint64_t> found_;  // by root: the last search that found it
  uint64_t searches_ = 0;
};

class WayMaker {
 public:
  WayMaker(Allocations& allocations, std::vector<uint32_t> unplaced, uint64_t& looks)
      : allocations_(allocations),
        looks_(looks),
        options_(allocations.tier().options),
        placed_(allocations.tier().uses.size(), true),
        moves_(placed_.size(), 0),
        by_time_(allocations.tier().positions(), placed_.size()),
        left_(std::move(unplaced)) {
    if (left_.empty()) return;
    for (const uint32_t u : allocations.roots()) by_time_.add(u, at(u));
    for (const uint32_t u : left_) placed_[u] = false;
    const auto size = [&](uint32_t u) { return allocations_.bytes(at(u)); };
    std::stable_sort(left_.begin(), left_.end(), [&](uint32_t a, uint32_t b) { return size(a) < size(b); });
  }

  std::optional<Interval> run() {
    while (!left_.empty()) {
      const uint32_t u = left_.back();
      if (looks_ == 0) return at(u);
      left_.pop_back();
      const Interval& one = at(u);
      const std::optional<Window> window = cheapest_window(one);
      const auto costs_more = [&](const Cost& cost) { return !window || window->cost > cost; };
      if (one.leads() && costs_more({}))
        retry(allocations_.leave(u, one.start, one.first_use_at - 1));
      else if (one.lags() && costs_more({}))
        retry(allocations_.leave(u, one.last_use_at + 1, one.end));
      else if (has_gaps(one) && costs_more({.gap_bytes = allocations_.bytes(one)}))
        retry(allocations_.leave_gaps(u));
      else if (window)
        place(u, window->offset);
      else
        return one;
    }
    return std::nullopt;
  }

 private:
  const Interval& at(uint32_t root) const { return allocations_.at_root(root); }
  bool has_gaps(const Interval& i) const {
    return i.first_use != i.last_use && !allocations_.tier().storages[i.storage].resident;
  }
  // Parts of an allocation have new roots, so all of `roots` are added to by_time_ again.
  void retry(const std::vector<uint32_t>& roots) {
    for (const uint32_t u : roots) {
      placed_[u] = false;
      by_time_.add(u, at(u));
    }
    left_.insert(left_.end(), roots.begin(), roots.end());
  }

  std::vector<uint32_t> in_the_way_of(const Interval& one) {
    std::vector<uint32_t> list = by_time_.near(one);
    looks_ -= std::min<uint64_t>(looks_, list.size());
    std::erase_if(list, [&](uint32_t u) {
      return !placed_[u] || allocations_.root(u) != u || at(u).start > one.end || at(u).end < one.start;
    });
    return list;
  }
  Cost cost_of_leaving(uint32_t root, const Interval& one) const {
    const Interval& i = at(root);
    const uint64_t bytes = allocations_.bytes(i);
    if (!allocations_.needs(i, one.start, one.end))
      return i.first_use_at > one.end || i.last_use_at < one.start ? Cost{.lead_bytes = bytes}
                                                                   : Cost{.gap_bytes = bytes};
    return moves_[root] < kMovesMax ? Cost{.moved = bytes} : Cost{.fixed = 1};
  }

  // The cheapest window, the lowest of equals, among the windows that begin where something ends or end where
  // something begins.
  std::optional<Window> cheapest_window(const Interval& one) {
    const uint64_t bytes = allocations_.bytes(one);
    if (options_.base + bytes > options_.capacity) return std::nullopt;
    CostsBelow begins, ends;
    for (const uint32_t u : in_the_way_of(one)) {
      const Cost cost = cost_of_leaving(u, one);
      begins.add(at(u).offset, cost);
      ends.add(at(u).offset + allocations_.bytes(at(u)), cost);
    }
    begins.finish();
    ends.finish();
    std::optional<Window> best;
    const auto consider = [&](uint64_t offset) {
      if (offset < options_.base || offset + bytes > options_.capacity) return;
      const Window window{begins.below(offset + bytes) - ends.below(offset + 1), offset};
      if (window.cost.fixed > 0) return;
      if (!best || std::tie(window.cost, offset) < std::tie(best->cost, best->offset)) best = window;
    };
    consider(options_.base);
    const uint64_t last = options_.capacity - bytes;
    consider(last - last % allocations_.tier().alignment);
    for (const auto& [address, cost] : ends.list()) consider(address);
    for (const auto& [address, cost] : begins.list())
      if (address >= bytes) consider(address - bytes);
    return best;
  }

  void place(uint32_t root, uint64_t offset) {
    const Interval one = at(root);
    const uint64_t end = offset + allocations_.bytes(one);
    for (const uint32_t u : in_the_way_of(one)) {
      if (at(u).offset >= end || at(u).offset + allocations_.bytes(at(u)) <= offset) continue;
      if (allocations_.needs(at(u), one.start, one.end)) {
        ++moves_[u];
        retry({u});
      } else {
        for (const uint32_t part : allocations_.leave(u, one.start, one.end)) {
          placed_[part] = true;
          by_time_.add(part, at(part));
        }
      }
    }
    allocations_.at_root(root).offset = offset;
    placed_[root] = true;
  }

  Allocations& allocations_;
  uint64_t& looks_;
  const StageOptions& options_;
  std::vector<bool> placed_;     // by root
  std::vector<uint32_t> moves_;  // by root
  ByTime by_time_;
  std::vector<uint32_t> left_;  // the largest last
};

}  // namespace

std::optional<Interval> make_way(Allocations& allocations, std::vector<uint32_t> unplaced, uint64_t& looks) {
  return WayMaker(allocations, std::move(unplaced), looks).run();
}

}  // namespace sluice::staging
