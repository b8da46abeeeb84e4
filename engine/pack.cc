// 1. By size: long-lived items first, then short-lived ones. By breadth: by the most bytes that live
//    together at any moment of an item's life. Among equals by size, then by length of life, then by start:
//    the order is total, so the result is deterministic.
// 2. Placed items are listed in order of address: all in one list, as long as a long-lived one is to come
//    that must scan it, and in lists of what lives at a time. These form levels: a list of the lowest covers
//    kBlock positions, each of the next kFan lists of the level below. An item is in the fewest lists that
//    cover its life, some 2 kFan a level at most, so that memory stays O(n log n).
// 3. For each item a scan over the list, or over the merged lists that cover its ends, finds the holes
//    between those that share a position with it; it takes the smallest that is large enough, the lowest of
//    equals.
#include "engine/pack.h"

#include <algorithm>
#include <numeric>

#include "engine/range_load.h"

namespace sluice {

namespace {

constexpr uint32_t kBlock = 64;  // positions
constexpr uint32_t kFan = 16;

bool long_lived(const PackItem& item) { return item.last - item.start >= kBlock; }

// By item.
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
using PlacedList = std::vector<Placed>;  // by offset

void insert(PlacedList& list, const PackItem& item) {
  const auto at = std::upper_bound(list.begin(), list.end(), item.offset,
                                   [](uint64_t offset, const Placed& p) { return offset < p.offset; });
  list.insert(at, {item.offset, item.offset + item.bytes, item.start, item.last});
}

// What lives at a time.
class Levels {
 public:
  explicit Levels(uint32_t positions) {
    for (uint32_t lists = positions / kBlock + 1;; lists = (lists - 1) / kFan + 1) {
      levels_.emplace_back(lists);
      if (lists == 1) return;
    }
  }

  void add(const PackItem& item) {
    uint32_t first = item.start / kBlock, end = item.last / kBlock + 1;
    for (std::vector<PlacedList>& level : levels_) {
      const bool top = &level == &levels_.back();
      for (; first < end && (top || first % kFan != 0); ++first) insert(level[first], item);
      for (; first < end && end % kFan != 0; --end) insert(level[end - 1], item);
      first /= kFan, end /= kFan;
    }
  }

  // The lists that hold all that shares a position with a short-lived item.
  void find(const PackItem& item, std::vector<std::span<const Placed>>& lists) const {
    uint32_t first = item.start / kBlock, last = item.last / kBlock;
    for (const std::vector<PlacedList>& level : levels_) {
      lists.emplace_back(level[first]);
      if (last != first) lists.emplace_back(level[last]);
      first /= kFan, last /= kFan;
    }
  }

 private:
  std::vector<std::vector<PlacedList>> levels_;
};

// Holes between what is met in order of address.
class HoleFinder {
 public:
  HoleFinder(const PackItem& item, uint64_t base) : item_(item), cursor_(base) {}

  void meet_all(std::span<std::span<const Placed>> lists) {
    for (;;) {
      std::span<const Placed>* next = nullptr;
      for (std::span<const Placed>& list : lists)
        if (!list.empty() && (!next || list.front().offset < next->front().offset)) next = &list;
      if (!next) return;
      meet(next->front());
      *next = next->subspan(1);
    }
  }
  // The lowest of the tightest holes in [base, capacity); UINT64_MAX if there is none.
  uint64_t finish(uint64_t capacity) {
    consider(capacity);
    return best_offset_;
  }

 private:
  void meet(const Placed& p) {
    if (p.start > item_.last || p.last < item_.start) return;
    consider(p.offset);
    cursor_ = std::max(cursor_, p.end);
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
  PlacedList all;
  std::vector<std::span<const Placed>> lists;
  auto long_left = std::count_if(items.begin(), items.end(), long_lived);
  uint64_t peak = base;
  const auto place = [&](const PackItem& item) {
    peak = std::max(peak, item.offset + item.bytes);
    if (item.bytes == 0) return;
    levels.add(item);
    if (long_left > 0) insert(all, item);
  };
  for (const PackItem& item : in_place) place(item);
  for (const uint32_t index : packing_order(items, ranks(items, positions, order))) {
    PackItem& item = items[index];
    lists.clear();
    if (long_lived(item)) {
      lists.emplace_back(all);
      --long_left;
    } else {
      levels.find(item, lists);
    }
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
