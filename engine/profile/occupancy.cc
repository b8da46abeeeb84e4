#include "engine/profile/occupancy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

namespace sluice {

std::vector<Stay> stays_of(const Program& program, const Body& body) {
  std::vector<Stay> stays;
  std::map<std::tuple<BufferId, uint32_t, TierId, uint64_t>, size_t> newest;  // by piece and address
  for (uint32_t at = 0; at < body.instructions.size(); ++at) {
    const Instruction& in = body.instructions[at];
    for (size_t k = 0; k < in.operands.size(); ++k) {
      const Operand& o = in.operands[k];
      const Place& place = in.places[k];
      const Buffer& b = program.buffers[o.buffer];
      if (b.permanent && place.tier == b.home) continue;
      for (uint32_t p = o.first; p < o.last; ++p) {
        const uint64_t offset = place.offset + b.cuts[p] - b.cuts[o.first];
        const auto [it, fresh] = newest.try_emplace({o.buffer, p, place.tier, offset}, stays.size());
        if (!fresh && o.access == Access::write) it->second = stays.size();
        if (it->second == stays.size())
          stays.push_back({o.buffer, p, place.tier, b.permanent, offset, b.cuts[p + 1] - b.cuts[p], at, at});
        stays[it->second].last = at;
      }
    }
  }
  return stays;
}

std::vector<ClassBytes> permanent_bytes(const Program& program) {
  std::vector<ClassBytes> bytes(program.machine.tiers.size(), ClassBytes{});
  for (const Buffer& b : program.buffers)
    if (b.permanent) bytes[b.home][static_cast<size_t>(b.kind)] += home_bytes(program, b);
  return bytes;
}

namespace {

struct Shift {
  double seconds = 0;
  bool begins = false;
  TierId tier = 0;
  BufferClass kind = BufferClass::weights;
  uint64_t bytes = 0;
  // At the same time, ends come before starts.
  bool operator<(const Shift& other) const {
    return seconds != other.seconds ? seconds < other.seconds : begins < other.begins;
  }
};

}  // namespace

std::vector<std::vector<OccupancyPoint>> occupancy(const Program& program, std::span<const BodyId> sequence,
                                                   const std::vector<std::vector<InstructionTime>>& times) {
  double first = std::numeric_limits<double>::infinity(), last = -first;
  for (const std::vector<InstructionTime>& body : times)
    for (const InstructionTime& t : body)
      if (std::isfinite(t.begin)) first = std::min(first, t.begin), last = std::max(last, t.end);
  std::vector<Shift> changes;
  std::vector<std::vector<Stay>> stays(program.bodies.size());
  for (size_t s = 0; s < times.size(); ++s) {
    std::vector<Stay>& of_body = stays[sequence[s]];
    if (of_body.empty()) of_body = stays_of(program, program.bodies[sequence[s]]);
    for (const Stay& stay : of_body) {
      const InstructionTime &from = times[s][stay.first], &to = times[s][stay.last];
      if (!std::isfinite(from.begin)) continue;
      const BufferClass kind = program.buffers[stay.buffer].kind;
      changes.push_back({from.begin, true, stay.tier, kind, stay.bytes});
      changes.push_back({std::isfinite(to.begin) ? to.end : last, false, stay.tier, kind, stay.bytes});
    }
  }
  std::sort(changes.begin(), changes.end());
  const std::vector<ClassBytes> permanent = permanent_bytes(program);
  std::vector<std::vector<OccupancyPoint>> curves(permanent.size());
  if (last < first) return curves;
  for (size_t t = 0; t < curves.size(); ++t) curves[t].push_back({first, permanent[t]});
  for (const Shift& c : changes) {
    std::vector<OccupancyPoint>& curve = curves[c.tier];
    if (curve.back().seconds != c.seconds) curve.push_back({c.seconds, curve.back().bytes});
    uint64_t& bytes = curve.back().bytes[static_cast<size_t>(c.kind)];
    bytes = c.begins ? bytes + c.bytes : bytes - c.bytes;
  }
  return curves;
}

}  // namespace sluice
