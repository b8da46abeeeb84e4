// The threaded executor: one thread a lane, completion counters, no locks around the work itself.
//
// 1. Counters count completed instructions of a lane since the start, over all bodies. A body that is issued
//    notes the counters at its begin, so a wait (lane, n) of this body is "counter >= base + n", and one on
//    the body before uses that body's base.
// 2. Lanes without file transfers run an instruction, then count it.
// 3. Lanes with file transfers start the requests of the next instruction as soon as its waits hold, keep the
//    queue going while they wait for other lanes, and count completions in order.
// 4. Lanes that are streams of a device have two threads. One enqueues: for a wait on a host lane it holds
//    itself back until that lane's counter is there; for a wait on another stream until the instruction was
//    enqueued (what the mark says before that belongs to an older body), and then lets the stream wait. The
//    other waits for one instruction after the other to be done and counts it.
// 5. After an error nothing more is carried out: instructions are only counted, so that every waiter returns.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "engine/clock.h"
#include "engine/error.h"
#include "engine/run/executor.h"

namespace sluice {

namespace {

constexpr size_t kIssuedMax = 4;            // remembered: two in flight, two the trainer may ask about
constexpr uint32_t kTransfersOpen = 64;     // started and not completed, per lane
constexpr int64_t kPollMicroseconds = 200;  // while a lane with open requests waits for another lane

class ThreadedExecutor final : public Executor {
 public:
  ThreadedExecutor(const Program& program, Runner& runner, const ExecutorOptions& options)
      : program_(program),
        runner_(runner),
        trace_(program),
        streams_(options.streams),
        orders_(lane_orders(program)),
        counters_(program.machine.lanes.size()),
        enqueued_(counters_.size()),
        at_(2 * counters_.size(), kNoThread),
        files_(counters_.size()) {
    for (Issued& body : bodies_) body.base.resize(counters_.size());
    for (LaneId l = 0; l < counters_.size(); ++l) {
      const auto uses = [&](const auto& order) { return !order[l].empty(); };
      if (std::none_of(orders_.begin(), orders_.end(), uses)) continue;
      at_[l] = 1;
      if (is_stream(l)) at_[counter_thread(l)] = 1;
      if (!moves_files(l)) continue;
      files_[l] =
          std::make_unique<TransferLane>(options.make_queue(), kTransfersOpen, options.file_alignment);
    }
    if (streams_) name_ranges();
    start_threads();
  }

  // What is left of bodies in flight is skipped: nobody waits for it.
  ~ThreadedExecutor() override { stop(); }

  void make_room() override {
    if (issued_ >= 2) wait(issued_ - 1);
  }

  uint64_t issue(BodyId body, const RingPositions& rings) override {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = issued_ + 1;
    // A lane without instructions in the last bodies may not have woken up yet. It would read the record that
    // is written over here.
    changed_.wait(lock, [&] {
      const uint64_t last = *std::min_element(at_.begin(), at_.end());
      return last > ticket || ticket - last < kIssuedMax;
    });
    Issued& mine = issued_body(ticket);
    mine.body = body;
    mine.rings = rings;
    if (issued_ > 0) {
      const Issued& before = issued_body(issued_);
      const auto& list = program_.bodies[body].predecessors;
      const auto it = std::find(list.begin(), list.end(), before.body);
      CHECK(it != list.end(), program_.bodies[before.body].name + " before " + program_.bodies[body].name);
      mine.predecessor = static_cast<size_t>(it - list.begin());
      for (LaneId l = 0; l < counters_.size(); ++l)
        mine.base[l] = before.base[l] + orders_[before.body][l].size();
    }
    issued_ = ticket;
    changed_.notify_all();
    return ticket;
  }

  void wait(uint64_t ticket) override {
    const Issued& body = issued_body(ticket);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      for (LaneId l = 0; l < counters_.size(); ++l)
        if (counters_[l] < body.base[l] + orders_[body.body][l].size()) return false;
      return true;
    });
  }
  std::exception_ptr error() const override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  const Trace& trace() const override { return trace_; }

 private:
  static constexpr size_t kNoPredecessor = SIZE_MAX;
  static constexpr uint64_t kNoThread = UINT64_MAX;
  struct Issued {
    BodyId body = 0;
    size_t predecessor = kNoPredecessor;
    RingPositions rings{};
    std::vector<uint64_t> base;  // by lane: its counter when the body begins
  };
  struct Open {  // an instruction whose transfers were started
    TraceRecord record;
    uint64_t last_transfer = 0;  // done when so many transfers of the lane are complete
  };
  class OpenList {  // first in, first out
   public:
    bool empty() const { return first_ == next_; }
    bool full() const { return next_ - first_ == entries_.size(); }
    Open& front() { return entries_[first_ % entries_.size()]; }
    void push(const Open& open) { entries_[next_++ % entries_.size()] = open; }
    void pop() { ++first_; }

   private:
    std::array<Open, kTransfersOpen / Runner::kTransfersMax> entries_;
    uint64_t first_ = 0, next_ = 0;
  };

  void name_ranges() {
    for (const Body& body : program_.bodies) {
      ranges_.emplace_back();
      for (const Instruction& in : body.instructions)
        ranges_.back().push_back(instruction_name(program_, body, in));
    }
  }

  void start_threads() {
    try {
      for (LaneId l = 0; l < counters_.size(); ++l) {
        if (at_[l] == kNoThread) continue;
        if (files_[l]) {
          threads_.emplace_back([this, l] { run_file_lane(l, *files_[l]); });
        } else if (is_stream(l)) {
          threads_.emplace_back([this, l] { enqueue_lane(l); });
          threads_.emplace_back([this, l] { count_lane(l); });
        } else
          threads_.emplace_back([this, l] { run_plain_lane(l); });
      }
    } catch (const std::system_error& e) {
      stop();
      throw Error(ExitCode::environment, std::string("Cannot start a thread for a lane: ") + e.what() + ".",
                  "Raise the limits on processes and memory (ulimit -u, ulimit -v, the container's).");
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      failed_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  Issued& issued_body(uint64_t ticket) { return bodies_[ticket % kIssuedMax]; }
  bool is_stream(LaneId lane) const { return streams_ && streams_->has(lane); }
  // Of a stream: the thread that counts; the one that enqueues has the lane's own index.
  size_t counter_thread(LaneId lane) const { return counters_.size() + lane; }

  void count(LaneId lane) {
    {
      const std::lock_guard lock(mutex_);
      ++counters_[lane];
    }
    changed_.notify_all();
  }
  // Nothing leaves a lane's thread: what is thrown there poisons the run. Where memory has run out there may
  // be none for a new sentence either, so the exception itself is kept.
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }

  // What the counter of the wait's lane reaches when the wait holds; `before`: it is one on the body before.
  uint64_t target(const Issued& body, const Wait& w, bool before) const {
    return body.base[w.lane] - (before ? lane_total_before(body, w.lane) : 0) + w.count;
  }

  // Whether all waits hold; if not, `missing` receives the first that does not. With the mutex held.
  bool ready(const Issued& body, const Instruction& in, Wait* missing) const {
    for (const Wait& w : in.waits)
      if (counters_[w.lane] < target(body, w, false)) return *missing = w, false;
    if (body.predecessor == kNoPredecessor) return true;
    for (const Wait& w : in.waits_before[body.predecessor])
      if (counters_[w.lane] < target(body, w, true)) return *missing = w, false;
    return true;
  }
  uint64_t lane_total_before(const Issued& body, LaneId lane) const {
    const BodyId before = program_.bodies[body.body].predecessors[body.predecessor];
    return orders_[before][lane].size();
  }

  // The thread reads no records of bodies before the ticket's any more.
  void enter(size_t thread, uint64_t ticket) {
    {
      const std::lock_guard lock(mutex_);
      at_[thread] = ticket;
    }
    changed_.notify_all();
  }
  // False when the executor stops.
  bool await_body(uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || issued_ >= ticket; });
    return issued_ >= ticket;
  }

  bool moves_files(LaneId lane) const {
    for (size_t b = 0; b < orders_.size(); ++b)
      for (const uint32_t i : orders_[b][lane])
        if (runner_.is_file_io(program_.bodies[b], program_.bodies[b].instructions[i])) return true;
    return false;
  }

  class Range {  // of a profiler, also when the work throws
   public:
    Range(Streams* streams, const char* name) : streams_(streams) {
      if (streams_) streams_->enter_range(name);
    }
    ~Range() {
      if (streams_) streams_->leave_range();
    }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

   private:
    Streams* streams_;
  };

  void run(const Issued& issued, uint32_t index) {
    const Body& body = program_.bodies[issued.body];
    const Range range(streams_, streams_ ? ranges_[issued.body][index].c_str() : nullptr);
    runner_.run(body, body.instructions[index], issued.rings);
  }

  void run_plain_lane(LaneId lane) {
    for (uint64_t ticket = 1; await_body(ticket); enter(lane, ++ticket)) {
      const Issued& issued = issued_body(ticket);
      const Body& body = program_.bodies[issued.body];
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        TraceRecord record{ticket, index, 0, 0, steady_seconds(), 0, 0};
        {
          std::unique_lock lock(mutex_);
          Wait missing;
          changed_.wait(lock, [&] {
            if (ready(issued, in, &missing)) return true;
            record.blocked_on = missing.lane, record.blocked_count = missing.count;
            return false;
          });
        }
        record.begin = steady_seconds();
        if (!failed_) guarded([&] { run(issued, index); });
        record.end = steady_seconds();
        trace_.add(lane, record);
        count(lane);
      }
    }
  }

  void enqueue_lane(LaneId lane) {
    guarded([&] { streams_->enter_thread(); });
    for (uint64_t ticket = 1; await_body(ticket); enter(lane, ++ticket)) {
      const Issued& issued = issued_body(ticket);
      const Body& body = program_.bodies[issued.body];
      Mark mark{lane, ticket, 0};
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        for (const Wait& w : in.waits) hold_back(mark, issued, w, false);
        if (issued.predecessor != kNoPredecessor)
          for (const Wait& w : in.waits_before[issued.predecessor]) hold_back(mark, issued, w, true);
        if (!failed_) guarded([&] { enqueue(mark, issued, index); });
        ++mark.number;
        {
          const std::lock_guard lock(mutex_);
          ++enqueued_[lane];
        }
        changed_.notify_all();
      }
    }
  }

  void hold_back(const Mark& mark, const Issued& issued, const Wait& w, bool before) {
    const uint64_t count = target(issued, w, before);
    const bool in_stream = is_stream(w.lane);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return (in_stream ? enqueued_ : counters_)[w.lane] >= count; });
    }
    if (in_stream && !failed_)
      guarded([&] {
        streams_->wait_for(mark.lane, {w.lane, mark.ticket - (before ? 1 : 0), w.count - 1});
      });
  }

  void enqueue(const Mark& mark, const Issued& issued, uint32_t index) {
    streams_->begin(mark);
    run(issued, index);
    streams_->end(mark);
  }

  // After an error no mark may be there any more: what is left in the streams ends before the arenas do.
  void count_lane(LaneId lane) {
    guarded([&] { streams_->enter_thread(); });
    uint64_t number = 0;  // of instructions, since the start
    for (uint64_t ticket = 1; await_body(ticket); enter(counter_thread(lane), ++ticket)) {
      Mark mark{lane, ticket, 0};
      for (const uint32_t index : orders_[issued_body(ticket).body][lane]) {
        ++number;
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return enqueued_[lane] >= number; });
        }
        Streams::Interval interval{};
        if (!failed_)
          guarded([&] {
            streams_->synchronize(mark);
            interval = streams_->interval(mark);
          });
        trace_.add(lane, {ticket, index, 0, 0, interval.begin, interval.begin, interval.end});
        count(lane);
        ++mark.number;
      }
    }
  }

  void run_file_lane(LaneId lane, TransferLane& files) {
    OpenList open;
    for (uint64_t ticket = 1; await_body_with(ticket, lane, files, open); enter(lane, ++ticket)) {
      const Issued& issued = issued_body(ticket);
      const Body& body = program_.bodies[issued.body];
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        TraceRecord record{ticket, index, 0, 0, steady_seconds(), 0, 0};
        await_waits(issued, in, record, lane, files, open);
        record.begin = steady_seconds();
        if (!failed_) guarded([&] { start(body, in, issued.rings, files); });
        open.push({record, files.started()});
        progress(lane, files, open, 0);
      }
    }
    while (!open.empty()) progress(lane, files, open, kPollMicroseconds);
  }

  void start(const Body& body, const Instruction& in, const RingPositions& rings, TransferLane& files) {
    std::array<Transfer, Runner::kTransfersMax> list;
    const size_t count = runner_.transfers(body, in, rings, list);
    for (size_t i = 0; i < count; ++i) {
      while (!files.can_start() && !files.error()) files.progress(kPollMicroseconds);
      if (files.error()) return;
      files.start(list[i]);
    }
  }

  // Moves requests along and counts what is complete; after an error everything is.
  void progress(LaneId lane, TransferLane& files, OpenList& open, int64_t timeout) {
    if (!files.error()) files.progress(timeout);
    if (files.error() && !failed_) guarded([&] { throw to_error(*files.error()); });
    while (!open.empty() &&
           (failed_ ? files.error() || files.idle() : files.completed() >= open.front().last_transfer)) {
      open.front().record.end = steady_seconds();
      trace_.add(lane, open.front().record);
      open.pop();
      count(lane);
    }
  }

  void await_waits(const Issued& issued, const Instruction& in, TraceRecord& record, LaneId lane,
                   TransferLane& files, OpenList& open) {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        Wait missing;
        const auto holds = [&] {
          if (ready(issued, in, &missing)) return true;
          record.blocked_on = missing.lane, record.blocked_count = missing.count;
          return false;
        };
        if (open.empty()) changed_.wait(lock, holds);
        if (holds() && !open.full()) return;
      }
      progress(lane, files, open, kPollMicroseconds);
    }
  }
  bool await_body_with(uint64_t ticket, LaneId lane, TransferLane& files, OpenList& open) {
    while (!open.empty()) {
      {
        const std::lock_guard lock(mutex_);
        if (issued_ >= ticket) return true;
      }
      progress(lane, files, open, kPollMicroseconds);
    }
    return await_body(ticket);
  }

  const Program& program_;
  Runner& runner_;
  Trace trace_;
  Streams* const streams_;  // nullptr: every lane is one of the host
  const LaneOrders orders_;
  std::vector<std::vector<std::string>> ranges_;  // by body and instruction: names; empty without streams
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // counters_, enqueued_, at_, issued_, stopping_
  std::vector<uint64_t> counters_;   // by lane: instructions completed
  std::vector<uint64_t> enqueued_;   // by lane: of a stream, instructions enqueued
  std::vector<uint64_t> at_;         // by lane, and counter_thread(): the ticket it is at, or kNoThread
  std::array<Issued, kIssuedMax> bodies_;
  uint64_t issued_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  std::vector<std::unique_ptr<TransferLane>> files_;  // by lane; null where none moves bytes to or from files
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_threaded_executor(const Program& program, Runner& runner,
                                                 const ExecutorOptions& options) {
  return std::make_unique<ThreadedExecutor>(program, runner, options);
}

LaneOrders lane_orders(const Program& program) {
  LaneOrders orders;
  for (const Body& body : program.bodies) {
    orders.emplace_back(program.machine.lanes.size());
    for (uint32_t i = 0; i < body.instructions.size(); ++i)
      orders.back()[body.instructions[i].lane].push_back(i);
  }
  return orders;
}

std::unique_ptr<Executor> make_executor(const Program& program, Runner& runner,
                                        const ExecutorOptions& options) {
  return options.kind == ExecutorKind::threaded ? make_threaded_executor(program, runner, options)
                                                : make_list_executor(program, runner, options);
}

}  // namespace sluice
