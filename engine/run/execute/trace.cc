#include "engine/run/execute/trace.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr size_t kBodiesHeld = 5;

// Whether all work of the lane is in the first tier. Links to or from that tier count as work in it. CHECKs
// that a lane with work in that tier has none below: nobody would wait for what the lane enqueues.
bool works_in_first_tier(const Machine& machine, LaneId lane) {
  size_t first = 0, below = 0;
  for (const Unit& unit : machine.units)
    if (unit.lane == lane) ++(unit.tier == 0 ? first : below);
  for (const Link& link : machine.links)
    if (link.lane == lane) ++(link.from == 0 || link.to == 0 ? first : below);
  CHECK(first == 0 || below == 0, machine.lanes[lane].name + " works in the first tier and below it");
  return below == 0;
}

}  // namespace

std::vector<uint32_t> longest_lanes(const Program& program) {
  std::vector<uint32_t> most(program.machine.lanes.size(), 0);
  for (const Body& body : program.bodies) {
    std::vector<uint32_t> count(most.size(), 0);
    for (const Instruction& in : body.instructions) ++count[in.lane];
    for (size_t l = 0; l < most.size(); ++l) most[l] = std::max(most[l], count[l]);
  }
  return most;
}

std::vector<uint32_t> longest_streams(const Program& program) {
  std::vector<uint32_t> most = longest_lanes(program);
  for (size_t l = 0; l < most.size(); ++l)
    if (!works_in_first_tier(program.machine, static_cast<LaneId>(l))) most[l] = 0;
  return most;
}

uint64_t Trace::bytes_at_most(uint64_t longest) { return kBodiesHeld * longest * sizeof(TraceRecord); }

Trace::Trace(const Program& program) : rings_(program.machine.lanes.size()) {
  const std::vector<uint32_t> most = longest_lanes(program);
  for (size_t l = 0; l < rings_.size(); ++l) rings_[l].records.resize(kBodiesHeld * std::max(most[l], 1u));
}

// Two bodies are in flight at most. So a record that follows a record with ticket t has ticket t - 1 or a
// higher one. The search ends before it comes to the oldest records, which the lane may be overwriting.
Trace::Range Trace::records_near(const Ring& ring, uint64_t ticket) const {
  const uint64_t next = ring.next.load(std::memory_order_acquire);
  const uint64_t oldest = next > ring.records.size() ? next - ring.records.size() : 0;
  uint64_t first = next;
  while (first > oldest && ring.records[(first - 1) % ring.records.size()].ticket + 1 >= ticket) --first;
  return {first, next};
}

double Trace::busy_seconds(LaneId lane, uint64_t ticket) const {
  double busy = 0, until = 0;
  const Ring& r = rings_[lane];
  const Range range = records_near(r, ticket);
  for (uint64_t i = range.first; i < range.last; ++i) {
    const TraceRecord& t = r.records[i % r.records.size()];
    if (t.ticket != ticket) continue;
    busy += std::max(0.0, t.end - std::max(t.begin, until));
    until = std::max(until, t.end);
  }
  return busy;
}

const TraceRecord& Trace::completed(LaneId lane, uint64_t number) const {
  const Ring& r = rings_[lane];
  const uint64_t next = r.next.load(std::memory_order_acquire);
  CHECK(number > 0 && number <= next && next - number < r.records.size(), "a record that is not there");
  return r.records[(number - 1) % r.records.size()];
}

const TraceRecord* Trace::find(LaneId lane, uint64_t ticket, uint32_t instruction) const {
  const Ring& r = rings_[lane];
  const Range range = records_near(r, ticket);
  for (uint64_t i = range.last; i-- > range.first;) {
    const TraceRecord& t = r.records[i % r.records.size()];
    if (t.ticket == ticket && t.instruction == instruction) return &t;
  }
  return nullptr;
}

}  // namespace sluice
