// Bytes in use at every position of a list. Bytes are added to ranges of positions. This is a segment tree
// with maxima, walked from the leaves up. An addition or a query takes O(log n).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sluice {

class RangeLoad {
 public:
  explicit RangeLoad(uint32_t positions) {
    while (leaves_ < positions + 2) leaves_ *= 2;
    nodes_.assign(2 * leaves_, {});
  }
  // Adds `bytes` (may be negative) to positions [first, last].
  void add(uint32_t first, uint32_t last, int64_t bytes) {
    uint32_t left = leaf(first) - 1, right = leaf(last) + 1;  // next to the range, on both sides
    for (; (left ^ right) != 1; find_max(left), find_max(right)) {
      if (left % 2 == 0) add_to(nodes_[left + 1], bytes);
      if (right % 2 == 1) add_to(nodes_[right - 1], bytes);
      left /= 2, right /= 2;
    }
    while (left > 1) find_max(left /= 2);
  }
  // The largest load in [first, last].
  int64_t max(uint32_t first, uint32_t last) const {
    uint32_t left = leaf(first) - 1, right = leaf(last) + 1;
    int64_t on_left = kNone, on_right = kNone;
    while ((left ^ right) != 1) {
      if (left % 2 == 0) on_left = std::max(on_left, nodes_[left + 1].max);
      if (right % 2 == 1) on_right = std::max(on_right, nodes_[right - 1].max);
      left /= 2, right /= 2;
      on_left += nodes_[left].added;
      on_right += nodes_[right].added;
    }
    int64_t most = std::max(on_left, on_right);
    while (left > 1) most += nodes_[left /= 2].added;
    return most;
  }

 private:
  struct Node {
    int64_t max = 0, added = 0;  // max: of its positions; added: to all of them
  };
  static constexpr int64_t kNone = INT64_MIN / 2;

  uint32_t leaf(uint32_t position) const { return leaves_ + 1 + position; }  // a leaf is free at both ends
  static void add_to(Node& node, int64_t bytes) {
    node.max += bytes;
    node.added += bytes;
  }
  void find_max(uint32_t node) {
    nodes_[node].max = std::max(nodes_[2 * node].max, nodes_[2 * node + 1].max) + nodes_[node].added;
  }

  uint32_t leaves_ = 2;
  std::vector<Node> nodes_;  // the root is node 1; children of node n: 2 n and 2 n + 1
};

}  // namespace sluice
