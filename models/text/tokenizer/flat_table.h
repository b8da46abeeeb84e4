// A hash table of 64-bit keys that is filled and then only read: open addressing, linear probing.
//
// Half of the slots stay empty, so a look-up touches one cache line as a rule. Callers: merges, added tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

template <typename Value>
class FlatTable {
 public:
  FlatTable() : slots_(kSlotsMin) {}

  // The value of `key`, made if it is not there.
  Value& at(uint64_t key) {
    Slot* slot = &slots_[place_of(key)];
    if (slot->key_and_one == 0) {
      if (2 * ++count_ > slots_.size()) {
        grow();
        slot = &slots_[place_of(key)];
      }
      slot->key_and_one = key + 1;
    }
    return slot->value;
  }
  const Value* find(uint64_t key) const {
    const Slot& slot = slots_[place_of(key)];
    return slot.key_and_one == 0 ? nullptr : &slot.value;
  }

 private:
  struct Slot {
    uint64_t key_and_one = 0;  // 0: empty; keys are below 2^64 - 1
    Value value{};
  };
  static constexpr size_t kSlotsMin = 16;  // a power of two, as every size

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.key_and_one != 0) slots_[place_of(slot.key_and_one - 1)] = slot;
  }
  size_t place_of(uint64_t key) const {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: Fibonacci hashing
    const size_t mask = slots_.size() - 1;
    size_t place = (key * kGolden >> 32) & mask;
    while (slots_[place].key_and_one != 0 && slots_[place].key_and_one != key + 1) place = (place + 1) & mask;
    return place;
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace sluice
