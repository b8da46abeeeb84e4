// 1. Sort by size, then by length of life, then by start: the order is total, so the result is deterministic.
// 2. The timeline is cut into blocks of kBlock positions; a placed item is listed in every block that it touches, so that
//    an item meets only those that live near it.
// 3. For each item: collect the address ranges of placed items that share a position with it, sort them, take the
//    smallest hole that is large enough.
#include "engine/pack.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice {

namespace {

constexpr uint32_t kBlock = 64;

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

// The tightest hole of at least `bytes` in [base, capacity) between sorted busy ranges; UINT64_MAX if there is none.
uint64_t tightest_hole(const std::vector<std::pair<uint64_t, uint64_t>>& busy, uint64_t bytes, uint64_t base,
                       uint64_t capacity) {
  uint64_t best_offset = UINT64_MAX, best_size = UINT64_MAX, cursor = base;
  const auto consider = [&](uint64_t end) {
    if (end < cursor || end - cursor < bytes) return;
    if (best_offset == UINT64_MAX || end - cursor < best_size) best_offset = cursor, best_size = end - cursor;
  };
  for (const auto& [begin, end] : busy) {
    consider(begin);
    cursor = std::max(cursor, end);
  }
  consider(capacity);
  return best_offset;
}

}  // namespace

uint64_t pack(std::span<PackItem> items, uint64_t base, uint64_t capacity) {
  uint32_t positions = 0;
  for (const PackItem& item : items) positions = std::max(positions, item.last + 1);
  std::vector<std::vector<uint32_t>> blocks(positions / kBlock + 1);
  std::vector<uint32_t> seen(items.size(), UINT32_MAX);
  std::vector<std::pair<uint64_t, uint64_t>> busy;
  uint64_t peak = base;
  for (const uint32_t index : packing_order(items)) {
    PackItem& item = items[index];
    busy.clear();
    for (uint32_t block = item.start / kBlock; block <= item.last / kBlock; ++block)
      for (const uint32_t other : blocks[block]) {
        if (seen[other] == index) continue;
        seen[other] = index;
        const PackItem& o = items[other];
        if (o.start <= item.last && item.start <= o.last) busy.emplace_back(o.offset, o.offset + o.bytes);
      }
    std::sort(busy.begin(), busy.end());
    const uint64_t offset = tightest_hole(busy, item.bytes, base, capacity);
    item.placed = offset != UINT64_MAX;
    if (!item.placed) continue;
    item.offset = offset;
    peak = std::max(peak, offset + item.bytes);
    if (item.bytes == 0) continue;
    for (uint32_t block = item.start / kBlock; block <= item.last / kBlock; ++block) blocks[block].push_back(index);
  }
  return peak;
}

}  // namespace sluice
