// Bytes in use at every position of a list, under range additions: a segment tree with maxima, O(log n) each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sluice {

class RangeLoad {
 public:
  explicit RangeLoad(uint32_t positions) {
    while (size_ < positions) size_ *= 2;
    max_.assign(2 * size_, 0);
    add_.assign(2 * size_, 0);
  }
  // Adds `bytes` (may be negative) to positions [first, last].
  void add(uint32_t first, uint32_t last, int64_t bytes) { add(1, 0, size_, first, last + 1, bytes); }
  // The largest load in [first, last].
  int64_t max(uint32_t first, uint32_t last) const { return max(1, 0, size_, first, last + 1); }

 private:
  void add(uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last, int64_t bytes) {
    if (last <= begin || end <= first) return;
    if (first <= begin && end <= last) {
      max_[node] += bytes;
      add_[node] += bytes;
      return;
    }
    const uint32_t middle = (begin + end) / 2;
    add(2 * node, begin, middle, first, last, bytes);
    add(2 * node + 1, middle, end, first, last, bytes);
    max_[node] = std::max(max_[2 * node], max_[2 * node + 1]) + add_[node];
  }
  int64_t max(uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last) const {
    if (last <= begin || end <= first) return INT64_MIN / 2;
    if (first <= begin && end <= last) return max_[node];
    const uint32_t middle = (begin + end) / 2;
    return std::max(max(2 * node, begin, middle, first, last), max(2 * node + 1, middle, end, first, last)) +
           add_[node];
  }

  uint32_t size_ = 1;
  std::vector<int64_t> max_, add_;
};

}  // namespace sluice
