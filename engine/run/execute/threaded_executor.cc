// The threaded executor: one thread a lane (two where the lane is a stream), completion counters, no locks
// around the work itself.
//
// 1. Lanes without file transfers await an instruction's waits, run the instruction, then count it.
// 2. Lanes with file transfers start the requests of the next instruction as soon as its waits are met, keep
//    the queue going while they wait for other lanes, and count completions in order.
// 3. Lanes that are streams of a device have two threads. One enqueues. For a wait on a host lane, it holds
//    back until that lane's counter has reached the number. For a wait on another stream, it holds back until
//    the instruction there is enqueued; until then, the mark (gpu/accelerator.h) would be one of an older
//    body. Then it lets its own stream wait for the mark. The other thread takes instructions in turn: it
//    waits until all that the instruction had to wait for is counted, then until the instruction is done, and
//    counts it. While it waits for a collective, it looks whether other ranks are lost or late.
//    The host must know an index (Pick) before it can enqueue what is picked, and the routing of all ranks
//    before their rows travel: the first thread holds back until the instruction that writes the index or the
//    routing is counted.
// 4. After an error nothing more is carried out: instructions are only counted, so that every waiter returns.
//    Collectives in the streams are given up, since other ranks may never come.
#include <algorithm>
#include <array>
#include <map>
#include <system_error>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/run/execute/executor.h"
#include "engine/run/execute/lane_progress.h"

namespace sluice {

namespace {

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
        progress_(program, orders_, 2 * lanes(), options.on_error),
        files_(lanes()) {
    for (LaneId l = 0; l < lanes(); ++l) {
      const auto uses = [&](const auto& order) { return !order[l].empty(); };
      if (std::none_of(orders_.begin(), orders_.end(), uses)) continue;
      progress_.add_thread(l);
      if (is_stream(l)) progress_.add_thread(counter_thread(l));
      const auto moves_files = [&](const Body& body, const Instruction& in) {
        return runner_.is_file_io(body, in);
      };
      if (!any_of(l, moves_files)) continue;
      const bool has_transfers = any_of(
          l, [&](const Body&, const Instruction& in) { return is_file_transfer(program_.machine, in); });
      files_[l] = std::make_unique<TransferLane>(options.make_queue(has_transfers), kTransfersOpen,
                                                 options.file_alignment);
    }
    if (streams_) {
      name_ranges();
      find_host_waits();
    }
    start_threads();
  }

  // The remaining instructions of bodies in flight are skipped: nobody waits for them.
  ~ThreadedExecutor() override { stop(); }

  void make_room() override { progress_.make_room(); }
  void await_idle_lane() override { progress_.await_idle_lane(); }
  uint64_t issue(BodyId body, const RingPositions& rings) override {
    return progress_.issue(body, rings, steady_seconds(), traced_);
  }
  void wait(uint64_t ticket) override { progress_.wait(ticket); }
  void wait(uint64_t ticket, const Wait& until) override { progress_.wait(ticket, until); }
  std::exception_ptr error() const override { return progress_.error(); }
  bool allow_drop(Droppable parts) override {
    progress_.allow_drop(std::move(parts));
    return true;
  }
  void set_meanwhile(std::function<void()> work) override { progress_.set_meanwhile(std::move(work)); }
  Kept drop() override { return progress_.drop(); }
  void drop_next() override { progress_.drop_next(); }
  void set_traced(bool traced) override {
    CHECK(!streams_, "executors with streams need the records: they look up there what held a stream back");
    traced_ = traced;
  }
  const Trace& trace() const override { return trace_; }

 private:
  struct Open {  // an instruction whose transfers were started
    TraceRecord record;
    bool traced = true;
    uint64_t last_transfer = 0;  // the instruction is done after this many of the lane's transfers
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

  // The host reads an operand of some instructions before it enqueues them (Operand::by_host). This finds the
  // last write of that operand, in the tier in which the host reads it.
  void find_host_waits() {
    for (const Body& body : program_.bodies) {
      std::map<uint32_t, Wait>& waits = host_waits_.emplace_back();
      std::map<std::pair<BufferId, TierId>, Wait> written;
      std::vector<uint32_t> counts(lanes(), 0);
      for (uint32_t i = 0; i < body.instructions.size(); ++i) {
        const Instruction& in = body.instructions[i];
        ++counts[in.lane];
        if (const auto k = by_host(in.operands))
          waits.emplace(i, written.at({in.operands[*k].buffer, in.places[*k].tier}));
        for (size_t k = 0; k < in.operands.size(); ++k)
          if (in.operands[k].access != Access::read)
            written[{in.operands[k].buffer, in.places[k].tier}] = {in.lane, counts[in.lane]};
      }
    }
  }

  void start_threads() {
    try {
      for (LaneId l = 0; l < lanes(); ++l) {
        if (!progress_.has_thread(l)) continue;
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
    progress_.stop();
    for (std::thread& t : threads_) t.join();
  }

  size_t lanes() const { return program_.machine.lanes.size(); }
  bool is_stream(LaneId lane) const { return streams_ && streams_->has(lane); }
  // Index of the thread that counts for a stream; the thread that enqueues has the lane's index.
  size_t counter_thread(LaneId lane) const { return lanes() + lane; }

  // Whether any of the lane's instructions meets the condition.
  template <typename Condition>
  bool any_of(LaneId lane, const Condition& condition) const {
    for (size_t b = 0; b < orders_.size(); ++b)
      for (const uint32_t i : orders_[b][lane])
        if (condition(program_.bodies[b], program_.bodies[b].instructions[i])) return true;
    return false;
  }

  class Range {  // a profiler's named range, which ends also when the work throws
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

  static double seconds_if(bool traced) { return traced ? steady_seconds() : 0; }

  void run(const IssuedBody& issued, uint32_t index) {
    const Body& body = program_.bodies[issued.body];
    const Range range(streams_, streams_ ? ranges_[issued.body][index].c_str() : nullptr);
    runner_.run(body, body.instructions[index], issued.rings);
  }

  void run_plain_lane(LaneId lane) {
    for (uint64_t ticket = 1; progress_.await_body(lane, ticket); progress_.enter(lane, ++ticket)) {
      const IssuedBody& issued = progress_.body(ticket);
      const Body& body = program_.bodies[issued.body];
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        TraceRecord record{ticket, index, 0, 0, seconds_if(issued.traced), 0, 0};
        progress_.await(lane, issued, in, record);
        record.begin = seconds_if(issued.traced);
        record.skipped = !progress_.begins(ticket, index);
        if (!record.skipped) progress_.guarded([&] { run(issued, index); });
        record.end = seconds_if(issued.traced);
        if (issued.traced) trace_.add(lane, record);
        progress_.count(lane);
      }
    }
  }

  void enqueue_lane(LaneId lane) {
    progress_.guarded([&] { streams_->enter_thread(); });
    uint64_t number = 0;  // of instructions, since the start
    for (uint64_t ticket = 1; progress_.await_body(lane, ticket); progress_.enter(lane, ++ticket)) {
      const IssuedBody& issued = progress_.body(ticket);
      const Body& body = program_.bodies[issued.body];
      Mark mark{lane, ticket, 0};
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        if (const auto written = host_waits_[issued.body].find(index);
            written != host_waits_[issued.body].end())
          progress_.await_count(lane, written->second.lane, progress_.target(issued, written->second, false));
        progress_.for_each_wait(
            issued, in, [&](const Wait& w, bool before) { hold_back(mark, issued, index, w, before); });
        ++number;
        if (progress_.begins(ticket, index))
          enqueue(mark, issued, index);
        else
          progress_.note_dropped(lane, number);
        ++mark.number;
        progress_.count_enqueued(lane);
      }
    }
  }

  void hold_back(const Mark& mark, const IssuedBody& issued, uint32_t index, const Wait& w, bool before) {
    const uint64_t count = progress_.target(issued, w, before);
    if (!is_stream(w.lane)) return progress_.await_count(mark.lane, w.lane, count);
    progress_.await_enqueued(mark.lane, w.lane, count);
    if (!progress_.failed())
      guarded(issued, index, "was to wait", [&] {
        streams_->wait_for(mark.lane, {w.lane, mark.ticket - (before ? 1 : 0), w.count - 1});
      });
  }

  void enqueue(const Mark& mark, const IssuedBody& issued, uint32_t index) {
    guarded(issued, index, "was enqueued", [&] {
      streams_->begin(mark);
      run(issued, index);
      streams_->end(mark);
    });
  }

  // A device may report an error at any later call, so the message names the instruction that met it. Errors
  // about lost ranks stay as they are.
  template <typename Work>
  void guarded(const IssuedBody& issued, uint32_t index, const char* doing, const Work& work) {
    progress_.guarded([&] {
      try {
        work();
      } catch (const Error& error) {
        if (error.code() == ExitCode::rank_lost) throw;
        throw error.with_clause("when `" + ranges_[issued.body][index] + "` " + doing);
      }
    });
  }

  // Counts a stream's instructions. After an error it does not synchronise, since marks may be missing, and
  // abandons what may be enqueued. Work that is left in the streams ends before the arenas do.
  void count_lane(LaneId lane) {
    const size_t thread = counter_thread(lane);
    progress_.guarded([&] { streams_->enter_thread(); });
    uint64_t number = 0;  // of instructions, since the start
    double idle_since = 0;
    for (uint64_t ticket = 1; progress_.await_body(thread, ticket); progress_.enter(thread, ++ticket)) {
      const IssuedBody& issued = progress_.body(ticket);
      const Body& body = program_.bodies[issued.body];
      Mark mark{lane, ticket, 0};
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        TraceRecord record{ticket, index};
        progress_.await_enqueued(thread, lane, ++number);
        progress_.await(thread, issued, in, record);
        Streams::Interval interval{};
        const bool is_dropped = progress_.was_dropped(lane, number, ticket);
        if (!progress_.failed() && !is_dropped)
          guarded(issued, index, "had to be done", [&] {
            runner_.synchronize(body, in, issued.rings, mark);
            interval = streams_->interval(mark);
          });
        record = {ticket, index, 0, 0, interval.begin, interval.begin, interval.end};
        record.skipped = progress_.failed();
        if (record.skipped) progress_.guarded([&] { runner_.abandon(body, in); });
        record.skipped |= is_dropped;
        find_obstacle(issued, in, std::max(idle_since, issued.seconds), record);
        idle_since = record.end;
        trace_.add(lane, record);
        progress_.count(lane);
        ++mark.number;
      }
    }
  }

  // Finds the wait that held back a stream's instruction: the one that was met last, if the lane was idle
  // then.
  void find_obstacle(const IssuedBody& issued, const Instruction& in, double idle_since,
                     TraceRecord& record) {
    record.blocked_on = 0, record.blocked_count = 0;
    double last = idle_since;
    progress_.for_each_wait(issued, in, [&](const Wait& w, bool before) {
      const double end = trace_.completed(w.lane, progress_.target(issued, w, before)).end;
      if (end <= last) return;
      last = end;
      record.blocked_on = w.lane, record.blocked_count = w.count;
    });
    if (last > idle_since) record.blocked_since = std::min(idle_since, record.begin);
  }

  void run_file_lane(LaneId lane, TransferLane& files) {
    OpenList open;
    for (uint64_t ticket = 1; await_body(ticket, lane, files, open); progress_.enter(lane, ++ticket)) {
      const IssuedBody& issued = progress_.body(ticket);
      const Body& body = program_.bodies[issued.body];
      for (const uint32_t index : orders_[issued.body][lane]) {
        const Instruction& in = body.instructions[index];
        TraceRecord record{ticket, index, 0, 0, seconds_if(issued.traced), 0, 0};
        await_waits(issued, in, record, lane, files, open);
        record.begin = seconds_if(issued.traced);
        record.skipped = !progress_.begins(ticket, index);
        if (!record.skipped) progress_.guarded([&] { start(body, in, issued.rings, files); });
        record.skipped |= progress_.failed();
        open.push({record, issued.traced, files.started()});
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

  // Moves requests along and counts completed instructions. After an error, all open instructions count as
  // completed once no request is in flight.
  void progress(LaneId lane, TransferLane& files, OpenList& open, int64_t timeout) {
    if (!files.error()) files.progress(timeout);
    if (files.error() && !progress_.failed()) progress_.guarded([&] { throw to_error(*files.error()); });
    while (!open.empty() && (progress_.failed() ? files.error() || files.idle()
                                                : files.completed() >= open.front().last_transfer)) {
      Open& done = open.front();
      done.record.end = seconds_if(done.traced);
      done.record.skipped |= files.completed() < done.last_transfer;
      if (done.traced) trace_.add(lane, done.record);
      open.pop();
      progress_.count(lane);
    }
  }

  void await_waits(const IssuedBody& issued, const Instruction& in, TraceRecord& record, LaneId lane,
                   TransferLane& files, OpenList& open) {
    while (!open.empty()) {
      if (progress_.holds(issued, in, record) && !open.full()) return;
      progress(lane, files, open, kPollMicroseconds);
    }
    progress_.await(lane, issued, in, record);
  }
  bool await_body(uint64_t ticket, LaneId lane, TransferLane& files, OpenList& open) {
    while (!open.empty()) {
      if (progress_.is_issued(ticket)) return true;
      progress(lane, files, open, kPollMicroseconds);
    }
    return progress_.await_body(lane, ticket);
  }

  const Program& program_;
  Runner& runner_;
  Trace trace_;
  bool traced_ = true;
  Streams* const streams_;  // nullptr: no lane is a stream
  const LaneOrders orders_;
  std::vector<std::vector<std::string>> ranges_;      // by body and instruction: names; empty without streams
  std::vector<std::map<uint32_t, Wait>> host_waits_;  // by body and instruction; empty without streams
  LaneProgress progress_;
  std::vector<std::unique_ptr<TransferLane>> files_;  // by lane; null: it moves no bytes to or from files
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
