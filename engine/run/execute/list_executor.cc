// The serial and the shuffled executor: one thread, no overlap in time.
//
// Serial runs the list order. Shuffled is a machine of lanes with seeded choices. At each turn, a random lane
// either starts its next instruction, if the waits of that instruction are met, or carries out one that it
// has started. An overlapping lane carries out the instructions that it has started in any order; they count
// as completed in list order. Two bodies are in flight at most. Half of the bodies begin only after the body
// before has ended. Before such a body begins, the homes of buffers without content are poisoned.
#include <algorithm>
#include <array>
#include <deque>
#include <random>

#include "engine/base/clock.h"
#include "engine/run/execute/executor.h"

namespace sluice {

namespace {

bool has_file_transfers(const Program& program) {
  const auto is_one = [&](const Instruction& in) { return is_file_transfer(program.machine, in); };
  return std::any_of(program.bodies.begin(), program.bodies.end(), [&](const Body& body) {
    return std::any_of(body.instructions.begin(), body.instructions.end(), is_one);
  });
}

class ListExecutor final : public Executor {
 public:
  ListExecutor(const Program& program, Runner& runner, const ExecutorOptions& options)
      : program_(program),
        runner_(runner),
        shuffled_(options.kind == ExecutorKind::shuffled),
        random_(options.seed),
        trace_(program),
        lanes_(program.machine.lanes),
        streams_(options.streams),
        on_error_(options.on_error),
        orders_(lane_orders(program)),
        files_(options.make_queue(has_file_transfers(program)), Runner::kTransfersMax,
               options.file_alignment) {
    if (streams_) streams_->enter_thread();
  }

  void await_idle_lane() override {}  // lanes only move while the trainer waits for a body
  void make_room() override {
    while (flight_.size() > 1) run_oldest();
  }
  uint64_t issue(BodyId body, const RingPositions& rings) override {
    CHECK(flight_.size() < 2, "a third body was issued");
    // Poisons buffers that have no content now. The bodies in flight may still read them, so these bodies run
    // first.
    if (shuffled_ && random_() % 2 == 0) {
      while (!flight_.empty()) run_oldest();
      runner_.poison(program_.bodies[body].start);
    }
    const uint64_t ticket = ++issued_;
    Flight f{ticket, body, kNone, rings, std::vector<Progress>(lanes_.size())};
    if (last_body_ != kNone) f.before = predecessor_index(body, static_cast<BodyId>(last_body_));
    last_body_ = body;
    flight_.push_back(std::move(f));
    if (!shuffled_) run_oldest();
    return ticket;
  }
  void wait(uint64_t ticket) override {
    while (!flight_.empty() && flight_.front().ticket <= ticket) run_oldest();
  }
  void wait(uint64_t ticket, const Wait& until) override {
    if (!shuffled_) return;  // issued bodies have run
    const auto body =
        std::find_if(flight_.begin(), flight_.end(), [&](const Flight& f) { return f.ticket == ticket; });
    while (!error_ && body != flight_.end() && body->lanes[until.lane].completed < until.count) choose();
  }
  std::exception_ptr error() const override { return error_; }
  void set_traced(bool traced) override { traced_ = traced; }
  const Trace& trace() const override { return trace_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kStartedMax = 8;
  struct Progress {
    uint32_t started = 0, completed = 0;
    std::vector<uint32_t> open;     // numbers of instructions started, not yet carried out
    std::vector<uint32_t> carried;  // carried out, not yet counted as completed
  };
  struct Flight {
    uint64_t ticket;
    BodyId body;
    uint32_t before;  // index into Body::predecessors
    RingPositions rings;
    std::vector<Progress> lanes;
  };

  uint32_t predecessor_index(BodyId body, BodyId before) const {
    const auto& list = program_.bodies[body].predecessors;
    const auto it = std::find(list.begin(), list.end(), before);
    CHECK(it != list.end(), program_.bodies[before].name + " before " + program_.bodies[body].name);
    return static_cast<uint32_t>(it - list.begin());
  }

  void run_oldest() {
    if (!shuffled_) {
      Flight& f = flight_.front();
      const Body& body = program_.bodies[f.body];
      for (uint32_t i = 0; i < body.instructions.size() && !error_; ++i) carry_out(f, i);
    } else {
      while (!done(flight_.front())) choose();
    }
    flight_.pop_front();
  }

  bool done(const Flight& f) const {
    if (error_) return true;
    for (LaneId l = 0; l < lanes_.size(); ++l)
      if (!completed_all(f, l)) return false;
    return true;
  }
  bool completed_all(const Flight& f, LaneId lane) const {
    return f.lanes[lane].completed == orders_[f.body][lane].size();
  }

  // One random legal action of the machine. A lane starts the younger body once it has completed the older
  // one. An overlapping lane needs only to have started all instructions of the older one.
  void choose() {
    std::vector<std::pair<size_t, LaneId>> actions;
    for (size_t k = 0; k < flight_.size(); ++k)
      for (LaneId l = 0; l < lanes_.size(); ++l)
        if (!flight_[k].lanes[l].open.empty() || can_start(k, l)) actions.emplace_back(k, l);
    CHECK(!actions.empty(), "the lanes wait for each other");
    const auto [k, l] = actions[random_() % actions.size()];
    Progress& p = flight_[k].lanes[l];
    const bool start = can_start(k, l) && (p.open.empty() || random_() % 2 == 0);
    if (start) {
      p.open.push_back(++p.started);
      return;
    }
    const size_t pick = random_() % p.open.size();
    const uint32_t number = p.open[pick];
    p.open.erase(p.open.begin() + static_cast<std::ptrdiff_t>(pick));
    carry_out(flight_[k], orders_[flight_[k].body][l][number - 1]);
    p.carried.push_back(number);
    for (auto it = p.carried.begin(); it != p.carried.end();) {
      it = std::find(p.carried.begin(), p.carried.end(), p.completed + 1);
      if (it == p.carried.end()) break;
      p.carried.erase(it);
      ++p.completed;
      it = p.carried.begin();
    }
  }

  bool can_start(size_t k, LaneId lane) const {
    const Flight& f = flight_[k];
    const Progress& p = f.lanes[lane];
    const bool overlapping = program_.machine.lanes[lane].overlapping;
    if (p.started == orders_[f.body][lane].size()) return false;
    if (overlapping ? p.started - p.completed >= kStartedMax : p.started != p.completed) return false;
    if (k == 1) {
      const Progress& older = flight_[0].lanes[lane];
      const size_t all = orders_[flight_[0].body][lane].size();
      if (overlapping ? older.started < all : older.completed < all) return false;
    }
    const Instruction& in = program_.bodies[f.body].instructions[orders_[f.body][lane][p.started]];
    for (const Wait& w : in.waits) {
      if (f.lanes[w.lane].completed < w.count) return false;
      if (k == 1 && !completed_all(flight_[0], w.lane))
        return false;  // completions are counted in order, across bodies too
    }
    if (k == 1)
      for (const Wait& w : in.waits_before[f.before])
        if (flight_[0].lanes[w.lane].completed < w.count) return false;
    return true;
  }

  void carry_out(const Flight& f, uint32_t index) {
    const Body& body = program_.bodies[f.body];
    const Instruction& in = body.instructions[index];
    const double begin = traced_ ? steady_seconds() : 0;
    try {
      if (runner_.is_file_io(body, in))
        transfer(body, in, f.rings);
      else if (streams_ && streams_->has(in.lane))
        run_in_stream(f, body, in);
      else
        runner_.run(body, in, f.rings);
    } catch (...) {
      error_ = std::current_exception();
      if (on_error_) on_error_();
    }
    if (traced_) trace_.add(in.lane, {f.ticket, index, 0, 0, begin, begin, steady_seconds()});
  }

  void run_in_stream(const Flight& f, const Body& body, const Instruction& in) {
    const Mark mark{in.lane, f.ticket, 0};
    streams_->begin(mark);
    runner_.run(body, in, f.rings);
    streams_->end(mark);
    runner_.synchronize(body, in, f.rings, mark);
  }

  void transfer(const Body& body, const Instruction& in, const RingPositions& rings) {
    std::array<Transfer, Runner::kTransfersMax> list;
    const size_t count = runner_.transfers(body, in, rings, list);
    for (size_t i = 0; i < count; ++i) files_.start(list[i]);
    while (!files_.idle() && !files_.error()) files_.progress(1000);
    if (files_.error()) throw to_error(*files_.error());
  }

  const Program& program_;
  Runner& runner_;
  const bool shuffled_;
  bool traced_ = true;
  std::mt19937_64 random_;
  Trace trace_;
  const std::vector<Lane>& lanes_;
  Streams* const streams_;
  const std::function<void()> on_error_;
  const LaneOrders orders_;
  TransferLane files_;
  std::deque<Flight> flight_;
  uint64_t issued_ = 0;
  uint32_t last_body_ = kNone;
  std::exception_ptr error_;
};

}  // namespace

std::unique_ptr<Executor> make_list_executor(const Program& program, Runner& runner,
                                             const ExecutorOptions& options) {
  return std::make_unique<ListExecutor>(program, runner, options);
}

}  // namespace sluice
