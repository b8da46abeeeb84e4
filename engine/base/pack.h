// Packs items whose lives are known in advance into one range of addresses. In the order that PackOrder
// names, each item gets the tightest hole that is free for its whole life (best fit on a known timeline).
// Used for arenas and for the tensors inside a segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct PackItem {
  uint32_t start = 0, last = 0;  // positions in the list, both inclusive
  uint64_t bytes = 0;            // a multiple of the caller's alignment
  uint64_t offset = 0;           // result
  bool placed = false;           // result
};

// by_size: long-lived items before short-lived ones, then the largest first. by_breadth: by the most bytes
// that live at once during an item's life, the largest first (Pisarchyk, Lee 2020, "Efficient memory
// management for deep neural net inference").
enum class PackOrder : uint8_t { by_size, by_breadth };

// Assigns offsets in [base, capacity). The items `in_place` lie there already, at the offsets that they have.
// Items that do not fit are left unplaced. Returns the highest address in use.
uint64_t pack(std::span<PackItem> items, uint64_t base, uint64_t capacity,
              PackOrder order = PackOrder::by_size, std::span<const PackItem> in_place = {});

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace sluice
