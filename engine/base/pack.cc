// 1. Items are ordered (PackOrder). by_size: long-lived ones before short-lived ones. by_breadth: by the most
//    bytes that live together at any moment of an item's life. Equals are ordered by size, length of life,
//    start and index: the order is total, so the result is deterministic.
// 2. The addresses of placed items are kept by the positions at which they are taken (Levels).
// 3. For each item, the addresses that are taken at some moment of its life are met in order, which gives the
//    holes between them. The item takes the smallest hole that is large enough, the lowest of equals.
#include "engine/base/pack.h"

#include <algorithm>
#include <numeric>

#include "engine/base/range_load.h"

namespace sluice {

namespace {

constexpr uint32_t kBlock = 64;  // positions
constexpr uint32_t kFan = 8;

bool long_lived(const PackItem& item) { return item.last - item.start >= kBlock; }

// Returns, by item, the figure that packing_order() compares first. The largest comes first.
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

struct Range {  // of addresses
  uint64_t begin, end;
};

bool begins_before(const Range& a, const Range& b) { return a.begin < b.begin; }

// A union of ranges. Ranges that meet or overlap are merged when the set is read, and when many were added.
class AddressSet {
 public:
  void add(const Range& range) {
    ranges_.push_back(range);
    if (ranges_.size() > 2 * ordered_ + kBlock) merge();
  }
  std::span<const Range> in_order() {
    if (ordered_ < ranges_.size()) merge();
    return ranges_;
  }

 private:
  void merge() {
    const auto added = ranges_.begin() + static_cast<std::ptrdiff_t>(ordered_);
    std::sort(added, ranges_.end(), begins_before);
    std::inplace_merge(ranges_.begin(), added, ranges_.end(), begins_before);
    size_t last = 0;
    for (size_t n = 1; n < ranges_.size(); ++n)
      if (ranges_[n].begin <= ranges_[last].end)
        ranges_[last].end = std::max(ranges_[last].end, ranges_[n].end);
      else
        ranges_[++last] = ranges_[n];
    ranges_.resize(last + 1);
    ordered_ = ranges_.size();
  }
  std::vector<Range> ranges_;
  size_t ordered_ = 0;
};

// For each position, which is a point in time, the addresses that are taken then. A node of the lowest level
// stands for kBlock positions, a node of each next level for kFan nodes of the level below. An item owns the
// largest nodes that lie wholly within its life, at most about 2 kFan in each level. At each end of its life,
// it covers a part of one node of the lowest level and of the nodes above that node.
class Levels {
 public:
  explicit Levels(uint32_t positions) : blocks_(positions / kBlock + 1) {
    for (size_t nodes = blocks_.size();; nodes = (nodes - 1) / kFan + 1) {
      levels_.emplace_back(nodes);
      if (nodes == 1) return;
    }
  }

  void add(const PackItem& item) {
    const Range range{item.offset, item.offset + item.bytes};
    for_each_node(item, [&](size_t level, size_t node, bool own) {
      levels_[level][node].somewhere.add(range);
      if (own) levels_[level][node].everywhere.add(range);
      if (own || level > 0) return;
      std::vector<Placed>& block = blocks_[node];
      const auto at = std::ranges::upper_bound(block, range, begins_before, &Placed::range);
      block.insert(at, {range, item.start, item.last});
    });
  }

  // Finds sets whose union is the addresses that are taken at some position of the item's life. The sets are
  // valid until the next call.
  void find(const PackItem& item, std::vector<std::span<const Range>>& sets) {
    size_t parts = 0;
    for_each_node(item, [&](size_t level, size_t node, bool own) {
      Node& n = levels_[level][node];
      sets.push_back((own ? n.somewhere : n.everywhere).in_order());
      if (own || level > 0) return;
      std::vector<Range>& part = parts_[parts++];
      part.clear();
      for (const Placed& p : blocks_[node])
        if (p.start <= item.last && p.last >= item.start) part.push_back(p.range);
      sets.push_back(part);
    });
    std::erase_if(sets, [](std::span<const Range> set) { return set.empty(); });
  }

 private:
  struct Node {
    // everywhere: addresses that items take at each position of the node, since they own the node. somewhere:
    // addresses that items take at some of these positions, since they own the node or cover a part of it.
    AddressSet everywhere, somewhere;
  };
  struct Placed {
    Range range;
    uint32_t start, last;
  };

  // Calls f(level, node, whether the item owns the node) for the nodes that the item owns or covers in part.
  template <typename F>
  void for_each_node(const PackItem& item, F f) const {
    size_t first = item.start / kBlock, last = item.last / kBlock;  // nodes that the item touches
    size_t begin = (item.start + kBlock - 1) / kBlock,
           end = (size_t{item.last} + 1) / kBlock;  // nodes that it covers wholly
    const auto covers = [&](size_t node) { return begin <= node && node < end; };
    for (size_t level = 0; level < levels_.size(); ++level) {
      if (!covers(first)) f(level, first, false);
      if (last != first && !covers(last)) f(level, last, false);
      const size_t begin_above = (begin + kFan - 1) / kFan, end_above = end / kFan;
      const bool highest = begin_above >= end_above || level + 1 == levels_.size();
      for (size_t n = begin; n < (highest ? end : begin_above * kFan); ++n) f(level, n, true);
      for (size_t n = highest ? end : end_above * kFan; n < end; ++n) f(level, n, true);
      begin = begin_above, end = highest ? begin_above : end_above;
      first /= kFan, last /= kFan;
    }
  }

  // By node of the lowest level: items that cover a part of it, in order of address.
  std::vector<std::vector<Placed>> blocks_;
  std::vector<std::vector<Node>> levels_;
  std::vector<Range> parts_[2];
};

// Meets ranges in order of address, and finds the tightest hole between them.
class HoleFinder {
 public:
  HoleFinder(uint64_t bytes, uint64_t base) : bytes_(bytes), cursor_(base) {}

  // Uses the sets up; none may be empty. They are kept as a heap: the first set begins lowest, and the
  // children of set n are 2 n + 1 and 2 n + 2.
  void meet_all(std::vector<std::span<const Range>>& sets) {
    for (size_t n = sets.size() / 2; n-- > 0;) sink(sets, n);
    while (!sets.empty()) {
      std::span<const Range>& next = sets.front();
      consider(next.front().begin);
      cursor_ = std::max(cursor_, next.front().end);
      next = next.subspan(1);
      if (next.empty()) {
        next = sets.back();
        sets.pop_back();
      }
      sink(sets, 0);
    }
  }
  // The lowest of the tightest holes in [base, capacity); UINT64_MAX if there is none.
  uint64_t finish(uint64_t capacity) {
    consider(capacity);
    return best_offset_;
  }

 private:
  static void sink(std::vector<std::span<const Range>>& sets, size_t n) {
    const auto begin = [&](size_t set) { return sets[set].front().begin; };
    for (size_t child = 2 * n + 1; child < sets.size(); child = 2 * n + 1) {
      if (child + 1 < sets.size() && begin(child + 1) < begin(child)) ++child;
      if (begin(n) <= begin(child)) return;
      std::swap(sets[n], sets[child]);
      n = child;
    }
  }
  void consider(uint64_t until) {
    if (until < cursor_ || until - cursor_ < bytes_) return;
    if (best_offset_ != UINT64_MAX && until - cursor_ >= best_size_) return;
    best_offset_ = cursor_;
    best_size_ = until - cursor_;
  }
  uint64_t bytes_, cursor_, best_offset_ = UINT64_MAX, best_size_ = UINT64_MAX;
};

}  // namespace

uint64_t pack(std::span<PackItem> items, uint64_t base, uint64_t capacity, PackOrder order,
              std::span<const PackItem> in_place) {
  uint32_t positions = 0;
  for (const std::span<const PackItem> list : {std::span<const PackItem>(items), in_place})
    for (const PackItem& item : list) positions = std::max(positions, item.last + 1);
  Levels levels(positions);
  std::vector<std::span<const Range>> sets;
  uint64_t peak = base;
  const auto place = [&](const PackItem& item) {
    peak = std::max(peak, item.offset + item.bytes);
    if (item.bytes > 0) levels.add(item);
  };
  for (const PackItem& item : in_place) place(item);
  for (const uint32_t index : packing_order(items, ranks(items, positions, order))) {
    PackItem& item = items[index];
    sets.clear();
    levels.find(item, sets);
    HoleFinder finder(item.bytes, base);
    finder.meet_all(sets);
    const uint64_t offset = finder.finish(capacity);
    item.placed = offset != UINT64_MAX;
    if (!item.placed) continue;
    item.offset = offset;
    place(item);
  }
  return peak;
}

}  // namespace sluice
