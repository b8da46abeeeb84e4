// A map from address ranges to values. Assigning to a range takes O(log n), amortised; a query also takes
// time for each assignment that it covers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace sluice {

class AddressMap {
 public:
  // The largest value of any address in [begin, end); 0 where nothing was assigned.
  uint32_t max(uint64_t begin, uint64_t end) const {
    uint32_t most = 0;
    auto it = values_.upper_bound(begin);
    if (it != values_.begin()) --it;
    for (; it != values_.end() && it->first < end; ++it)
      if (std::next(it) == values_.end() || std::next(it)->first > begin) most = std::max(most, it->second);
    return most;
  }
  void assign(uint64_t begin, uint64_t end, uint32_t value) {
    if (begin == end) return;
    const uint32_t after = at(end);
    values_.erase(values_.lower_bound(begin), values_.upper_bound(end));
    values_[begin] = value;
    values_[end] = after;
  }

 private:
  uint32_t at(uint64_t address) const {
    const auto it = values_.upper_bound(address);
    return it == values_.begin() ? 0 : std::prev(it)->second;
  }
  std::map<uint64_t, uint32_t> values_;  // value from here to the next key
};

}  // namespace sluice
