// 1. Items are ordered (PackOrder). by_size: long-lived ones before short-lived ones. by_breadth: by the most
//    bytes that live together at any moment of an item's life. Equals are ordered by size, length of life,
//    start and index: the order is total, so the result is deterministic.
// 2. Placed items are listed by the positions at which they live (Levels).
// 3. For each item, the lists of those that may share a position with it are merged in order of address,
//    which gives the holes between those that do. The item takes the smallest hole that is large enough, the
//    lowest of equals.
#include "engine/base/pack.h"

#include <algorithm>
#include <numeric>

#include "engine/base/range_load.h"

namespace sluice {

namespace {

constexpr uint32_t kBlock = 64;  // positions
constexpr uint32_t kFan = 8;

bool long_lived(const PackItem& item) { return item.last - item.start >= kBlock; }

// By item: what packing_order() compares first; the largest comes first.
std::vector<uint64_t> ranks(std::span<const PackItem> items, uint32_t positions, PackOrder order) {
  std::vector<uint64_t> rank;
  if (order == PackOrder::by_size) {
    for (const PackItem& item : items) rank.push_back(long_lived(item));
    return rank;
  }
  RangeLoad load(std::max(positions, 1u));
  for (const PackItem& item : items) load.add(item.start, item.last, static_cast<int64_t>(item.bytes));
  for (const PackItem& item : items) rank.push_back(static_cast<uint64_t>(load.max(item.start, item.last)));
  return rank;
}

std::vector<uint32_t> packing_order(std::span<const PackItem> items, const std::vector<uint64_t>& rank) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const PackItem &x = items[a], &y = items[b];
    if (rank[a] != rank[b]) return rank[a] > rank[b];
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    const uint32_t length_x = x.last - x.start, length_y = y.last - y.start;
    if (length_x != length_y) return length_x > length_y;
    if (x.start != y.start) return x.start < y.start;
    return a < b;
  });
  return order;
}

struct Placed {
  uint64_t offset, end;
  uint32_t start, last;
};

// In order of address whenever it is looked at.
class PlacedList {
 public:
  void add(const Placed& p) { list_.push_back(p); }
  std::span<const Placed> in_order() {
    const auto by_offset = [](const Placed& a, const Placed& b) { return a.offset < b.offset; };
    const auto added = list_.begin() + static_cast<std::ptrdiff_t>(ordered_);
    std::sort(added, list_.end(), by_offset);
    std::inplace_merge(list_.begin(), added, list_.end(), by_offset);
    ordered_ = list_.size();
    return list_;
  }

 private:
  std::vector<Placed> list_;
  size_t ordered_ = 0;
};

// Placed items by the positions at which they live. A node of the lowest level stands for kBlock positions, a
// node of each next level for kFan nodes of the level below. An item is listed as `covered` with the fewest
// nodes that make up its life, about 2 kFan a level at most, and as `within` with nodes that it covers in
// part, two a level: memory stays O(n log n). A search takes time of about kFan times the item's life.
class Levels {
 public:
  explicit Levels(uint32_t positions) {
    for (uint32_t nodes = positions / kBlock + 1;; nodes = (nodes - 1) / kFan + 1) {
      levels_.emplace_back(nodes);
      if (nodes == 1) return;
    }
  }

  void add(const PackItem& item) {
    const Placed placed{item.offset, item.offset + item.bytes, item.start, item.last};
    uint32_t first = item.start / kBlock, last = item.last / kBlock;  // nodes that it touches
    uint32_t begin = first, end = last + 1;                           // nodes that it covers
    const auto covers = [&](uint32_t node) { return begin <= node && node < end; };
    for (std::vector<Node>& level : levels_) {
      if (!covers(first)) level[first].within.add(placed);
      if (last != first && !covers(last)) level[last].within.add(placed);
      const uint32_t begin_above = (begin + kFan - 1) / kFan, end_above = end / kFan;
      const bool highest = begin_above >= end_above || &level == &levels_.back();
      for (uint32_t n = begin; n < (highest ? end : begin_above * kFan); ++n) level[n].covered.add(placed);
      for (uint32_t n = highest ? end : end_above * kFan; n < end; ++n) level[n].covered.add(placed);
      begin = begin_above, end = end_above;
      first /= kFan, last /= kFan;
    }
  }

  // The lists that hold every placed item that shares a position with `item`: those of the first level on
  // which `item` touches two nodes at most, and of the levels above.
  void find(const PackItem& item, std::vector<std::span<const Placed>>& lists) {
    const auto look = [&](PlacedList& list) { lists.push_back(list.in_order()); };
    uint32_t first = item.start / kBlock, last = item.last / kBlock;
    bool within = true;
    for (std::vector<Node>& level : levels_) {
      if (last - first <= 1) {
        for (uint32_t n = first; n <= last; ++n) {
          if (within) look(level[n].within);
          look(level[n].covered);
        }
        within = false;
      }
      first /= kFan, last /= kFan;
    }
  }

 private:
  struct Node {
    PlacedList covered, within;
  };
  std::vector<std::vector<Node>> levels_;
};

// Meets placed items in order of address, and finds the tightest hole between them.
class HoleFinder {
 public:
  HoleFinder(const PackItem& item, uint64_t base) : item_(item), cursor_(base) {}

  void meet_all(std::vector<std::span<const Placed>>& lists) {
    std::erase_if(lists, [&](std::span<const Placed>& list) { return !skip(list); });
    while (!lists.empty()) {
      auto& next = *std::min_element(lists.begin(), lists.end(), [](const auto& a, const auto& b) {
        return a.front().offset < b.front().offset;
      });
      consider(next.front().offset);
      cursor_ = std::max(cursor_, next.front().end);
      next = next.subspan(1);
      if (skip(next)) continue;
      next = lists.back();
      lists.pop_back();
    }
  }
  // The lowest of the tightest holes in [base, capacity); UINT64_MAX if there is none.
  uint64_t finish(uint64_t capacity) {
    consider(capacity);
    return best_offset_;
  }

 private:
  // Drops the front of the list as far as it shares no position with the item. False if nothing is left.
  bool skip(std::span<const Placed>& list) const {
    size_t n = 0;
    while (n < list.size() && (list[n].start > item_.last || list[n].last < item_.start)) ++n;
    list = list.subspan(n);
    return !list.empty();
  }
  void consider(uint64_t until) {
    if (until < cursor_ || until - cursor_ < item_.bytes) return;
    if (best_offset_ != UINT64_MAX && until - cursor_ >= best_size_) return;
    best_offset_ = cursor_;
    best_size_ = until - cursor_;
  }
  const PackItem& item_;
  uint64_t cursor_, best_offset_ = UINT64_MAX, best_size_ = UINT64_MAX;
};

}  // namespace

uint64_t pack(std::span<PackItem> items, uint64_t base, uint64_t capacity, PackOrder order,
              std::span<const PackItem> in_place) {
  uint32_t positions = 0;
  for (const std::span<const PackItem> list : {std::span<const PackItem>(items), in_place})
    for (const PackItem& item : list) positions = std::max(positions, item.last + 1);
  Levels levels(positions);
  std::vector<std::span<const Placed>> lists;
  uint64_t peak = base;
  const auto place = [&](const PackItem& item) {
    peak = std::max(peak, item.offset + item.bytes);
    if (item.bytes > 0) levels.add(item);
  };
  for (const PackItem& item : in_place) place(item);
  for (const uint32_t index : packing_order(items, ranks(items, positions, order))) {
    PackItem& item = items[index];
    lists.clear();
    levels.find(item, lists);
    HoleFinder finder(item, base);
    finder.meet_all(lists);
    const uint64_t offset = finder.finish(capacity);
    item.placed = offset != UINT64_MAX;
    if (!item.placed) continue;
    item.offset = offset;
    place(item);
  }
  return peak;
}

}  // namespace sluice
