// How far the lanes of the threaded executor have come.
//
// A counter a lane: instructions completed since the start, over all bodies. A body that is issued notes the
// counters at its begin, so a wait (lane, n) of this body is "counter >= base + n", and one on the body
// before uses that body's base. Of a lane that is a stream the instructions that were enqueued are counted,
// too. What an instruction throws is kept; from then on every lane only counts, so that every waiter returns.
//
// The trainer's thread issues and waits. A lane's threads read an issued body from await_body() to enter() of
// the next one; each is one of the indices that add_thread() was called with.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/run/execute/executor.h"

namespace sluice {

struct IssuedBody {
  static constexpr size_t kNoPredecessor = SIZE_MAX;
  BodyId body = 0;
  size_t predecessor = kNoPredecessor;  // index among the body's
  RingPositions rings{};
  double seconds = 0;          // when it was issued
  bool traced = true;
  std::vector<uint64_t> base;  // by lane: its counter when the body begins
};

class LaneProgress {
 public:
  // `threads` indices of threads, of which none is there yet. What is referred to outlives this. `on_error`,
  // if there is one, is called by whoever fails.
  LaneProgress(const Program& program, const LaneOrders& orders, size_t threads,
               std::function<void()> on_error);

  // Set-up.
  void add_thread(size_t thread) { at_[thread] = 1; }
  bool has_thread(size_t thread) const { return at_[thread] != kNoThread; }

  // The trainer's thread.
  void make_room();
  uint64_t issue(BodyId body, const RingPositions& rings, double seconds, bool traced);
  void wait(uint64_t ticket);
  std::exception_ptr error() const;
  void stop();  // await_body() returns for all threads; what was issued is only counted

  // A lane's threads: bodies.
  bool await_body(uint64_t ticket);  // false when the executor stops
  bool is_issued(uint64_t ticket) const;
  const IssuedBody& body(uint64_t ticket) const { return bodies_[ticket % kIssuedMax]; }
  void enter(size_t thread, uint64_t ticket);  // it reads no body before the ticket's any more

  // Waits. Blocks until all of the instruction's hold, or says whether they do. What was found missing last
  // is noted as what the record is blocked on.
  void await(const IssuedBody& issued, const Instruction& in, TraceRecord& record);
  bool holds(const IssuedBody& issued, const Instruction& in, TraceRecord& record) const;
  // Calls f(wait, whether it is one on the body before) for each of the instruction's waits.
  template <typename F>
  void for_each_wait(const IssuedBody& issued, const Instruction& in, F f) const {
    for (const Wait& w : in.waits) f(w, false);
    if (issued.predecessor == IssuedBody::kNoPredecessor) return;
    for (const Wait& w : in.waits_before[issued.predecessor]) f(w, true);
  }
  // What the counter of the wait's lane reaches when the wait holds.
  uint64_t target(const IssuedBody& issued, const Wait& w, bool before) const;

  // Counters.
  void count(LaneId lane) { raise(counters_, lane); }
  void count_enqueued(LaneId lane) { raise(enqueued_, lane); }
  void await_count(LaneId lane, uint64_t count) { await_counter(counters_, lane, count); }
  void await_enqueued(LaneId lane, uint64_t count) { await_counter(enqueued_, lane, count); }

  // Nothing leaves a lane's thread: what is thrown there poisons the run. Where memory has run out there may
  // be none for a new sentence either, so the exception itself is kept.
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        failed_ = true;
      }
      if (on_error_) on_error_();
    }
  }
  bool failed() const { return failed_; }

 private:
  static constexpr size_t kIssuedMax = 4;  // remembered: two in flight, two the trainer may ask about
  static constexpr uint64_t kNoThread = UINT64_MAX;

  bool ready(const IssuedBody& issued, const Instruction& in, TraceRecord& record) const;
  void raise(std::vector<uint64_t>& counters, LaneId lane);
  void await_counter(const std::vector<uint64_t>& counters, LaneId lane, uint64_t count);

  const Program& program_;
  const LaneOrders& orders_;
  const std::function<void()> on_error_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // counters_, enqueued_, at_, issued_, stopping_
  std::vector<uint64_t> counters_;   // by lane: instructions completed
  std::vector<uint64_t> enqueued_;   // by lane: of a stream, instructions enqueued
  std::vector<uint64_t> at_;         // by thread: the ticket it is at, or kNoThread
  std::array<IssuedBody, kIssuedMax> bodies_;
  uint64_t issued_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

}  // namespace sluice
