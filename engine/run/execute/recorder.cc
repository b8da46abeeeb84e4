#include "engine/run/execute/recorder.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

Recorder::Recorder(const Program& program, std::span<const BodyId> kinds, size_t bodies) {
  size_t longest = 0;
  for (const BodyId b : kinds) longest = std::max(longest, program.bodies[b].instructions.size());
  bodies_.reserve(bodies);
  records_.resize(bodies * longest);
}

void Recorder::copy(const Trace& trace, uint64_t ticket, BodyId body, int64_t step) {
  CHECK(bodies_.size() < bodies_.capacity(), "more bodies than a recorder was made for");
  const size_t first = bodies_.empty() ? 0 : bodies_.back().first + bodies_.back().count;
  size_t count = 0;
  trace.for_each(ticket, [&](LaneId, const TraceRecord& record) {
    CHECK(first + count < records_.size(), "more records than a recorder was made for");
    records_[first + count++] = record;
  });
  bodies_.push_back({body, step, first, count});
}

}  // namespace sluice
