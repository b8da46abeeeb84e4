// 1. By size: long-lived items first, then short-lived ones. By breadth: by the most bytes that live together at
//    any moment of an item's life. Among equals by size, then by length of life, then by start: the order is
//    total, so the result is deterministic.
// 2. Placed items are listed in order of address: all in one list, as long as a long-lived one is to come that
//    must scan it, and those that live in a block of kBlock positions in a list of that block. An item that is
//    short-lived touches two blocks at most.
// 3. For each item a scan over the list, or the two merged, finds the holes between those that share a
//    position with it; it takes the smallest that is large enough, the lowest of equals.
#include "engine/pack.h"

#include <algorithm>
#include <numeric>

#include "engine/range_load.h"

namespace sluice {

namespace {

constexpr uint32_t kBlock = 64;  // positions

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

// Holes between what is met in order of address.
class HoleFinder {
 public:
  HoleFinder(const PackItem& item, uint64_t base) : item_(item), cursor_(base) {}

  void meet(const Placed& p) {
    if (p.start > item_.last || p.last < item_.start) return;
    consider(p.offset);
    cursor_ = std::max(cursor_, p.end);
  }
  void meet_all(const PlacedList& a, const PlacedList& b) {
    size_t i = 0, k = 0;
    while (i < a.size() || k < b.size()) {
      if (k == b.size() || (i < a.size() && a[i].offset <= b[k].offset))
        meet(a[i++]);
      else
        meet(b[k++]);
    }
  }
  // The lowest of the tightest holes in [base, capacity); UINT64_MAX if there is none.
  uint64_t finish(uint64_t capacity) {
    consider(capacity);
    return best_offset_;
  }

 private:
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

uint64_t pack(std::span<PackItem> items, uint64_t base, uint64_t capacity, PackOrder order) {
  uint32_t positions = 0;
  for (const PackItem& item : items) positions = std::max(positions, item.last + 1);
  std::vector<PlacedList> blocks(positions / kBlock + 1);
  PlacedList all;
  auto long_left = std::count_if(items.begin(), items.end(), long_lived);
  uint64_t peak = base;
  for (const uint32_t index : packing_order(items, ranks(items, positions, order))) {
    PackItem& item = items[index];
    const uint32_t first = item.start / kBlock, last = item.last / kBlock;
    HoleFinder finder(item, base);
    if (long_lived(item)) {
      finder.meet_all(all, {});
      --long_left;
    } else {
      finder.meet_all(blocks[first], last == first ? PlacedList{} : blocks[last]);
    }
    const uint64_t offset = finder.finish(capacity);
    item.placed = offset != UINT64_MAX;
    if (!item.placed) continue;
    item.offset = offset;
    peak = std::max(peak, offset + item.bytes);
    if (item.bytes == 0) continue;
    for (uint32_t block = first; block <= last; ++block) insert(blocks[block], item);
    if (long_left > 0) insert(all, item);
  }
  return peak;
}

}  // namespace sluice
