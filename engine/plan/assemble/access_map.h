// Who touched an address last: a map from address ranges to the last writer and the readers since that write,
// per lane.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "engine/base/error.h"
#include "engine/program/program.h"

namespace sluice {

constexpr size_t kLanesMax = 16;
using LaneCounts = std::array<uint32_t, kLanesMax>;  // by lane: number of an instruction, from 1; 0 = none

inline void raise(LaneCounts& to, const LaneCounts& from) {
  for (size_t l = 0; l < kLanesMax; ++l)
    if (from[l] > to[l]) to[l] = from[l];
}
inline void raise(LaneCounts& to, LaneId lane, uint32_t count) {
  if (count > to[lane]) to[lane] = count;
}

class AccessMap {
 public:
  struct Record {
    uint32_t writer = 0;  // 0: not written in this body
    LaneId writer_lane = 0;
    LaneCounts readers{};
  };

  // Adds to `needs` what an access of [begin, end) depends on; calls exposed(begin, end) for parts that were
  // not written in this body; then records the access.
  template <typename Exposed>
  void access(uint64_t begin, uint64_t end, bool writes, LaneId lane, uint32_t number, LaneCounts& needs,
              const Exposed& exposed) {
    if (begin == end) return;
    split(begin);
    split(end);
    for (auto it = records_.find(begin); it->first != end; ++it) {
      Record& r = it->second;
      if (r.writer)
        raise(needs, r.writer_lane, r.writer);
      else
        exposed(it->first, std::next(it)->first);
      if (writes)
        raise(needs, r.readers);
      else
        raise(r.readers, lane, number);
    }
    if (!writes) return;
    const auto first = records_.find(begin);
    first->second = {number, lane, {}};
    records_.erase(std::next(first), records_.find(end));
  }

  // Adds to `needs` what an access of [begin, end) by the next body depends on.
  void needs_of(uint64_t begin, uint64_t end, bool writes, LaneCounts& needs) const {
    auto it = records_.upper_bound(begin);
    if (it != records_.begin()) --it;
    for (; it != records_.end() && it->first < end; ++it) {
      if (std::next(it) == records_.end() || std::next(it)->first <= begin) continue;
      if (it->second.writer) raise(needs, it->second.writer_lane, it->second.writer);
      if (writes) raise(needs, it->second.readers);
    }
  }

 private:
  // Makes `address` a boundary. The record after the last boundary is never looked at.
  void split(uint64_t address) {
    const auto after = records_.upper_bound(address);
    if (after != records_.begin()) {
      const auto before = std::prev(after);
      if (before->first != address) records_.emplace_hint(after, address, before->second);
    } else {
      records_.emplace_hint(after, address, Record{});
    }
  }
  std::map<uint64_t, Record> records_;
};

}  // namespace sluice
