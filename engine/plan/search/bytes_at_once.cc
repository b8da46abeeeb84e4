#include "engine/plan/search/bytes_at_once.h"

#include <algorithm>
#include <vector>

namespace sluice {

uint64_t bytes_at_once(const Program& program, const Body& body) {
  struct Stay {
    uint32_t first = kNoTask, last = 0;  // tasks
  };
  std::vector<std::vector<Stay>> stays(program.buffers.size());  // by piece
  std::vector<int64_t> changes(body.tasks.size() + 1);
  const auto end = [&](const Stay& s, uint64_t bytes) {
    changes[s.first] += static_cast<int64_t>(bytes);
    changes[s.last + 1] -= static_cast<int64_t>(bytes);
  };
  for (uint32_t t = 0; t < body.tasks.size(); ++t)
    for (const Operand& o : body.tasks[t].operands) {
      const Buffer& b = program.buffers[o.buffer];
      if (b.permanent) continue;
      stays[o.buffer].resize(b.cuts.size() - 1);
      for (uint32_t p = o.first; p < o.last; ++p) {
        Stay& s = stays[o.buffer][p];
        const bool anew = s.first != kNoTask && o.access == Access::write && s.last != t;
        if (anew) end(s, b.cuts[p + 1] - b.cuts[p]);
        if (anew || s.first == kNoTask) s.first = t;
        s.last = t;
      }
    }
  int64_t now = 0, most = 0;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (b.owns_home()) now += static_cast<int64_t>(b.bytes());
    for (size_t p = 0; p < stays[i].size(); ++p)
      if (stays[i][p].first != kNoTask) end(stays[i][p], b.cuts[p + 1] - b.cuts[p]);
  }
  for (const int64_t change : changes) most = std::max(most, now += change);
  return static_cast<uint64_t>(most);
}

}  // namespace sluice
