// How far the lanes of the threaded executor have come.
//
// Each lane has a counter: the instructions completed since the start, over all bodies. An issued body keeps
// the counters' values at its start as its base. A wait (lane, n) on this body is met when counter >= base +
// n; a wait on the previous body uses the previous body's base. For a lane that is a stream, enqueued
// instructions are counted too. What an instruction throws is kept; from then on every lane only counts, so
// that every waiter returns. A change wakes only the threads whose wait it ends.
//
// The trainer's thread issues and waits. A lane's thread may read an issued body from the time at which
// await_body() returns for it until the thread calls enter() for the next one. Each of the lanes' threads has
// an index, the argument of add_thread(), and gives it with its calls.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/run/execute/executor.h"

namespace sluice {

struct IssuedBody {
  static constexpr size_t kNoPredecessor = SIZE_MAX;
  BodyId body = 0;
  size_t predecessor = kNoPredecessor;  // index into Body::predecessors
  RingPositions rings{};
  double seconds = 0;  // when it was issued
  bool traced = true;
  std::vector<uint64_t> base;  // by lane: its counter at the body's start
};

class LaneProgress {
 public:
  // `threads` is the number of indices; none has a thread yet. The references outlive this. `on_error` may be
  // empty; it is called on the thread that fails.
  LaneProgress(const Program& program, const LaneOrders& orders, size_t threads,
               std::function<void()> on_error);

  // Set-up.
  void add_thread(size_t thread) { threads_[thread].at = 1; }
  bool has_thread(size_t thread) const { return threads_[thread].at != kNoThread; }

  // For the trainer's thread.
  void make_room();
  void await_idle_lane();
  uint64_t issue(BodyId body, const RingPositions& rings, double seconds, bool traced);
  void wait(uint64_t ticket);
  void wait(uint64_t ticket, const Wait& until);
  std::exception_ptr error() const;
  void stop();  // issued instructions are only counted; then await_body() returns false
  void allow_drop(Droppable parts) { droppable_ = std::move(parts); }
  void set_meanwhile(std::function<void()> work) { meanwhile_ = std::move(work); }
  Kept drop();
  void drop_next();

  // For a lane's threads: the issued bodies.
  bool await_body(size_t thread, uint64_t ticket);  // false when the executor stops
  bool is_issued(uint64_t ticket) const;
  const IssuedBody& body(uint64_t ticket) const { return bodies_[ticket % kIssuedMax]; }
  void enter(size_t thread, uint64_t ticket);  // the thread then reads no body before the ticket's

  // An instruction's waits: await() blocks until all are met, holds() says whether they are. The wait that
  // was found unmet last becomes the record's blocked_on.
  void await(size_t thread, const IssuedBody& issued, const Instruction& in, TraceRecord& record);
  bool holds(const IssuedBody& issued, const Instruction& in, TraceRecord& record) const;
  // Calls f(wait, whether it is on the body before) for each of the instruction's waits.
  template <typename F>
  void for_each_wait(const IssuedBody& issued, const Instruction& in, F f) const {
    for (const Wait& w : in.waits) f(w, false);
    if (issued.predecessor == IssuedBody::kNoPredecessor) return;
    for (const Wait& w : in.waits_before[issued.predecessor]) f(w, true);
  }
  // The value that the lane's counter must reach to meet the wait.
  uint64_t target(const IssuedBody& issued, const Wait& w, bool before) const;

  // Counters.
  void count(LaneId lane) { raise(counters_[lane]); }
  void count_enqueued(LaneId lane) { raise(enqueued_[lane]); }
  void await_count(size_t thread, LaneId lane, uint64_t count) {
    await_counter(thread, counters_[lane], count);
  }
  void await_enqueued(size_t thread, LaneId lane, uint64_t count) {
    await_counter(thread, enqueued_[lane], count);
  }

  // No exception leaves a lane's thread: it poisons the run. The exception itself is kept, since after
  // std::bad_alloc there may be no memory for a new message. Once the executor stops, nobody asks for it.
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        if (!error_) error_ = std::current_exception();
        failed_ = true;
      }
      if (on_error_) on_error_();
    }
  }
  bool failed() const { return failed_; }

  // Whether the instruction is to be carried out: nothing has failed, and it was not dropped. To be asked
  // once, right before the instruction is carried out.
  bool begins(uint64_t ticket, uint32_t index);
  // Called by the thread that enqueues on a stream, for the thread that counts: the lane's `number`-th
  // instruction was dropped. Later instructions of dropped bodies are not enqueued either.
  void note_dropped(LaneId lane, uint64_t number);
  bool was_dropped(LaneId lane, uint64_t number, uint64_t ticket) const;

 private:
  static constexpr size_t kIssuedMax = 4;  // issued bodies kept: two in flight, two more for the trainer
  static constexpr uint64_t kNoThread = UINT64_MAX;

  struct Thread {
    uint64_t at = kNoThread;  // ticket of the body that the thread is at; the trainer's thread is at none
    // Tests the condition that the thread sleeps for; null: the thread is awake.
    bool (*holds)(const void* condition) = nullptr;
    const void* condition = nullptr;
    std::condition_variable woken;
  };

  // Blocks the thread until the condition is true. The condition reads only what the mutex guards, and stays
  // true once it is, since counters only rise.
  template <typename Condition>
  void sleep_until(Thread& thread, std::unique_lock<std::mutex>& lock, const Condition& condition) {
    if (condition()) return;
    // Threads are compared first: only the trainer's thread, which sets meanwhile_, may read it.
    if (&thread == &threads_.back() && meanwhile_) return sleep_by_turns(lock, condition);
    thread.condition = &condition;
    thread.holds = [](const void* it) { return (*static_cast<const Condition*>(it))(); };
    thread.woken.wait(lock, [&] { return thread.holds == nullptr; });
  }
  // As sleep_until(), for the trainer's thread. It calls meanwhile_ at once, and then after every turn.
  template <typename Condition>
  void sleep_by_turns(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    constexpr auto kTurn = std::chrono::milliseconds(50);
    Thread& thread = threads_.back();
    for (;;) {
      lock.unlock();
      meanwhile_();
      lock.lock();
      if (condition()) return;
      thread.condition = &condition;
      thread.holds = [](const void* it) { return (*static_cast<const Condition*>(it))(); };
      if (thread.woken.wait_for(lock, kTurn, [&] { return thread.holds == nullptr; })) return;
      thread.holds = nullptr;
    }
  }
  bool is_complete(uint64_t ticket) const;  // with the mutex held
  // To be called after every change of what conditions read. No wake-up is lost: a thread whose condition
  // became true either sleeps by now and is found here, or has yet to look at its condition. A thread is
  // notified without the lock, since it would only wait for the lock.
  void wake_ready(std::unique_lock<std::mutex>& lock);

  bool ready(const IssuedBody& issued, const Instruction& in, TraceRecord& record) const;
  void raise(uint64_t& counter);
  void await_counter(size_t thread, const uint64_t& counter, uint64_t count);

  const Program& program_;
  const LaneOrders& orders_;
  const std::function<void()> on_error_;
  mutable std::mutex mutex_;
  std::vector<Thread> threads_;     // by index; the last is the trainer's
  std::vector<uint64_t> counters_;  // by lane: instructions completed
  std::vector<uint64_t> enqueued_;  // by lane that is a stream: instructions enqueued
  std::array<IssuedBody, kIssuedMax> bodies_;
  uint64_t issued_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  std::optional<Droppable> droppable_;
  std::function<void()> meanwhile_;
  uint64_t begun_ = 0;  // newest ticket with a begun instruction that changes what a checkpoint stores
  // Tickets above kept_.ticket, up to `dropped_`, are dropped. Unless kept_.whole, the instructions of
  // kept_.ticket that are not needed are dropped, too.
  Kept kept_;
  uint64_t dropped_ = 0;
  std::vector<uint64_t> dropped_from_;  // by lane that is a stream; 0: all was enqueued
};

}  // namespace sluice
