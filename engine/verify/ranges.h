// Two small structures behind the verifier's interval map. The position of an address is its place among all
// addresses in ascending order; every look-up is by position.
//
// AddressIndex gives each distinct address a dense id (open addressing) and, after sorting, its position.
// PositionSet is a set of positions with nearest-neighbour queries in O(log64 n): a bitmap with a summary
// bitmap over its words, and so on (the hierarchical bitmap form of van Emde Boas trees). For replay.cc, one
// thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

namespace sluice {

class AddressIndex {
 public:
  explicit AddressIndex(size_t expected) : slots_(std::bit_ceil(std::max<size_t>(2 * expected, 16))) {}

  uint32_t add(uint64_t address) {
    if (2 * addresses_.size() >= slots_.size()) grow();
    uint32_t& slot = find(address);
    if (slot == 0) {
      addresses_.push_back(address);
      slot = static_cast<uint32_t>(addresses_.size());
    }
    return slot - 1;
  }

  // Sorts; ids stay as they are, no address may be added afterwards.
  void sort() {
    std::vector<uint32_t> order(addresses_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return addresses_[a] < addresses_[b]; });
    positions_.resize(order.size());
    sorted_.resize(order.size());
    for (uint32_t r = 0; r < order.size(); ++r) {
      positions_[order[r]] = r;
      sorted_[r] = addresses_[order[r]];
    }
  }
  uint32_t position(uint32_t id) const { return positions_[id]; }
  uint64_t address_at(uint32_t position) const { return sorted_[position]; }
  uint32_t size() const { return static_cast<uint32_t>(addresses_.size()); }

 private:
  uint32_t& find(uint64_t address) {
    const size_t mask = slots_.size() - 1;
    size_t i = (address * 0x9E3779B97F4A7C15u) >> 20 & mask;  // Fibonacci hashing: low bits are often 0
    while (slots_[i] != 0 && addresses_[slots_[i] - 1] != address) i = (i + 1) & mask;
    return slots_[i];
  }
  void grow() {
    slots_.assign(2 * slots_.size(), 0);
    for (uint32_t id = 0; id < addresses_.size(); ++id) find(addresses_[id]) = id + 1;
  }

  std::vector<uint32_t> slots_;  // id + 1; 0 = free
  std::vector<uint64_t> addresses_, sorted_;
  std::vector<uint32_t> positions_;
};

class PositionSet {
 public:
  explicit PositionSet(uint32_t size) {
    size_t n = std::max<size_t>(size, 1);
    do {
      n = (n + 63) / 64;
      levels_.emplace_back(n, 0);
    } while (n > 1);
  }
  bool contains(uint32_t i) const { return levels_[0][i >> 6] >> (i & 63) & 1; }
  void insert(uint32_t i) {
    for (auto& level : levels_) {
      level[i >> 6] |= uint64_t{1} << (i & 63);
      i >>= 6;
    }
  }
  void erase(uint32_t i) {
    for (auto& level : levels_) {
      level[i >> 6] &= ~(uint64_t{1} << (i & 63));
      if (level[i >> 6] != 0) return;
      i >>= 6;
    }
  }
  // The nearest member; requires that there is one.
  uint32_t at_or_after(uint32_t i) const {
    size_t level = 0;
    uint64_t word = levels_[0][i >> 6] >> (i & 63);
    while (word == 0) {
      i = (i >> 6) + 1;
      const std::vector<uint64_t>& words = levels_[++level];
      word = (i >> 6) < words.size() ? words[i >> 6] >> (i & 63) : 0;
    }
    i += static_cast<uint32_t>(std::countr_zero(word));
    while (level-- > 0) i = i * 64 + static_cast<uint32_t>(std::countr_zero(levels_[level][i]));
    return i;
  }
  uint32_t at_or_before(uint32_t i) const {
    size_t level = 0;
    uint64_t word = levels_[0][i >> 6] << (63 - (i & 63));
    while (word == 0) {
      i = (i >> 6) - 1;
      word = levels_[++level][i >> 6] << (63 - (i & 63));
    }
    i -= static_cast<uint32_t>(std::countl_zero(word));
    while (level-- > 0) i = i * 64 + 63 - static_cast<uint32_t>(std::countl_zero(levels_[level][i]));
    return i;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // the last has one word
};

}  // namespace sluice
