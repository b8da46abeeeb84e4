// What ran when: one fixed ring of records per lane.
//
// A lane's thread writes its own ring before it counts the instruction as completed. A ring holds the records
// of five bodies at least. So the trainer's thread finds all records of a completed body while two more are
// in flight, and none of them is being written. A lane's thread finds the records of all lanes for the body
// that it is at and for the one before: until it has completed its current body, other lanes are at most one
// body ahead.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

struct TraceRecord {
  uint64_t ticket = 0;       // of the issued body
  uint32_t instruction = 0;  // index in the body's list
  LaneId blocked_on = 0;     // the wait that was satisfied last, if blocked_since < begin
  uint32_t blocked_count = 0;
  double blocked_since = 0, begin = 0, end = 0;  // by steady_seconds()
  bool skipped = false;                          // it was only counted, after an error or a drop
};

class Trace {
 public:
  explicit Trace(const Program& program);
  // The most bytes that a trace takes if the program's longest body has `longest` instructions and is the
  // longest on every lane, too. A step is such a body: bodies that load or save are shorter.
  static uint64_t bytes_at_most(uint64_t longest);

  void add(LaneId lane, const TraceRecord& record) {
    Ring& r = rings_[lane];
    const uint64_t n = r.next.load(std::memory_order_relaxed);
    r.records[n % r.records.size()] = record;
    r.next.store(n + 1, std::memory_order_release);
  }
  // Seconds during which at least one instruction of the ticket's body was being executed on the lane.
  double busy_seconds(LaneId lane, uint64_t ticket) const;
  // The lane's `number`-th record, counted from 1 since the start. Requires an executor that adds a record
  // whenever it counts an instruction. The caller must have seen the record's instruction counted.
  const TraceRecord& completed(LaneId lane, uint64_t number) const;
  // Calls f(lane, record) for every record of the ticket's body that is still there.
  template <typename F>
  void for_each(uint64_t ticket, F f) const {
    for (LaneId l = 0; l < rings_.size(); ++l) {
      const Range range = records_near(rings_[l], ticket);
      for (uint64_t i = range.first; i < range.last; ++i) {
        const TraceRecord& t = rings_[l].records[i % rings_[l].records.size()];
        if (t.ticket == ticket) f(l, t);
      }
    }
  }
  // The record of an instruction that completed, nullptr if it is not there any more.
  const TraceRecord* find(LaneId lane, uint64_t ticket, uint32_t instruction) const;

 private:
  struct Ring {
    std::vector<TraceRecord> records;
    std::atomic<uint64_t> next{0};  // records before it are complete
  };
  struct Range {
    uint64_t first, last;
  };
  // A range that holds all records of the ticket, and perhaps records of other tickets.
  Range records_near(const Ring& ring, uint64_t ticket) const;

  std::vector<Ring> rings_;
};

// The most instructions that any body has, by lane.
std::vector<uint32_t> longest_lanes(const Program& program);
// As longest_lanes() for lanes that work only in the first tier or transfer only to or from it; 0 for other
// lanes. Where that tier is an accelerator's memory, these lanes are its streams.
std::vector<uint32_t> longest_streams(const Program& program);

}  // namespace sluice
