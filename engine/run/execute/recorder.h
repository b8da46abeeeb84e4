// Keeps the trace of a profile's steps: a copy of every record, made before the rings of Trace overwrite it.
//
// Memory for all records is allocated at the start, so that copying allocates nothing. Owner: the trainer's
// thread, which calls copy() once a body is done.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "engine/run/execute/trace.h"

namespace sluice {

class Recorder {
 public:
  // Makes room for the records of `bodies` issued bodies, each of them one of `kinds`.
  Recorder(const Program& program, std::span<const BodyId> kinds, size_t bodies);

  // What was recorded of one issue of a body.
  struct Recorded {
    BodyId body = 0;
    int64_t step = 0;             // the step whose forward it runs; 0: none
    size_t first = 0, count = 0;  // its records, among all
  };

  // `step` as in Recorded. Requires that every lane has completed the ticket's body.
  void copy(const Trace& trace, uint64_t ticket, BodyId body, int64_t step);

  const std::vector<Recorded>& bodies() const { return bodies_; }  // in the order in which they were issued
  std::span<const TraceRecord> records(const Recorded& body) const {
    return std::span(records_).subspan(body.first, body.count);
  }
  uint64_t bytes() const { return records_.size() * sizeof(TraceRecord); }

 private:
  std::vector<Recorded> bodies_;
  std::vector<TraceRecord> records_;
};

}  // namespace sluice
