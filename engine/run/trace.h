// What ran when: one fixed ring of records per lane.
//
// A lane's thread writes its own ring before it counts the instruction as completed; readers look only at instructions that
// they have seen completed. A ring holds the last four bodies at least, so a trainer that reads a body's records when it is
// done finds them whole.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program.h"

namespace sluice {

struct TraceRecord {
  uint64_t ticket = 0;         // which issue of a body
  uint32_t instruction = 0;    // index in the body's list
  LaneId blocked_on = 0;       // the wait that was satisfied last, if blocked_since < begin
  uint32_t blocked_count = 0;
  double blocked_since = 0, begin = 0, end = 0;  // seconds of a steady clock
};

class Trace {
 public:
  explicit Trace(const Program& program);

  void add(LaneId lane, const TraceRecord& record) {
    Ring& r = rings_[lane];
    r.records[r.next++ % r.records.size()] = record;
  }
  // Seconds during which at least one instruction of the ticket's body was being executed on the lane.
  double busy_seconds(LaneId lane, uint64_t ticket) const;
  // The record of an instruction that completed, nullptr if it is not there any more.
  const TraceRecord* find(LaneId lane, uint64_t ticket, uint32_t instruction) const;

 private:
  struct Ring {
    std::vector<TraceRecord> records;
    uint64_t next = 0;
  };
  std::vector<Ring> rings_;
};

double steady_seconds();

}  // namespace sluice
