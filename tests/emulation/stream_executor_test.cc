// The threaded executor over streams, on an emulated GPU that takes any order which CUDA allows. Thousands of
// bodies have copies that hop between host lanes and streams. Streams that do not wait for each other must
// give wrong values. Then trace records of streams are checked, also of streams with made-up times.
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/run/execute/executor.h"
#include "gpu/cuda/device.h"
#include "gpu/machine.h"
#include "offload/arena.h"
#include "offload/io/backends.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/support/forwarded_streams.h"

namespace sluice {
namespace {

constexpr uint64_t kStride = 64;
constexpr size_t kBodies = 6, kHopsMax = 6;
constexpr TierId kDevice = 0, kHost = 1;
// Seconds by which a stream's clock may differ from the host's: the delay with which a thread that slept sees
// an event.
constexpr double kClockSkew = 0.05;

// A value's way through a body: from its slot of the ring `in` in host memory, through buffers in device or
// host memory, to its slot of the ring `out`. Each hop is a copy on the lane between its two tiers or, within
// host memory, on a host lane. Bodies without a hop on some lane leave it idle.
class Hops {
 public:
  explicit Hops(uint64_t seed) : random_(seed) {
    program_.machine = machine_of({.device = 1 << 20, .host = 1 << 20, .nvme = std::nullopt});
    program_.rings = {{"train"}};
    add_buffer(kHost, 0), add_buffer(kHost, 0);  // in, out
    for (size_t k = 0; k < kHopsMax; ++k) add_buffer(random_() % 2 ? kDevice : kHost, kNoRing);
    program_.arena_bytes = bytes_;
    for (size_t b = 0; b < kBodies; ++b) add_body();
    add_waits();
  }
  const Program& program() const { return program_; }

 private:
  void add_buffer(TierId tier, uint8_t ring) {
    Buffer b;
    b.name = "b" + std::to_string(program_.buffers.size());
    b.cuts = {0, sizeof(uint64_t)};
    b.permanent = true;
    b.home = tier;
    b.ring = ring;
    b.home_offset = bytes_[tier];
    b.slot_stride = kStride;
    bytes_[tier] += Ring{}.slots * kStride;
    program_.buffers.push_back(b);
  }

  LaneId lane_between(TierId from, TierId to) {
    if (from == kHost && to == kHost) return random_() % 2 ? kOptimizerLane : kCollectiveLane;
    return from == kHost ? kH2dLane : kD2hLane;
  }

  void add_body() {
    Body body;
    body.name = "body" + std::to_string(program_.bodies.size());
    body.advance = {1};
    for (BodyId before = 0; before < kBodies; ++before) body.predecessors.push_back(before);
    BufferId at = 0;
    const size_t last = 2 + random_() % kHopsMax;
    for (BufferId next = 2; next <= last; ++next) {
      if (program_.buffers[at].home == kDevice && program_.buffers[next].home == kDevice) continue;
      add_hop(body, at, next);
      at = next;
    }
    add_hop(body, at, 1);
    program_.bodies.push_back(body);
  }
  void add_hop(Body& body, BufferId from, BufferId to) {
    const Buffer &a = program_.buffers[from], &b = program_.buffers[to];
    Instruction in;
    in.lane = lane_between(a.home, b.home);
    in.operands = {{from, 0, 1, Access::read}, {to, 0, 1, Access::write}};
    in.places = {{a.home, a.home_offset}, {b.home, b.home_offset}};
    body.instructions.push_back(in);
  }

  // A hop waits for the hop before it, and for those hops of the preceding body that touch its buffers.
  void add_waits() {
    const LaneOrders orders = lane_orders(program_);
    const auto done = [&](BodyId b, size_t k) {
      const LaneId lane = program_.bodies[b].instructions[k].lane;
      const auto& order = orders[b][lane];
      const auto at = std::find(order.begin(), order.end(), static_cast<uint32_t>(k));
      return Wait{lane, static_cast<uint32_t>(at - order.begin()) + 1};
    };
    for (BodyId b = 0; b < kBodies; ++b)
      for (size_t k = 0; k < program_.bodies[b].instructions.size(); ++k) {
        Instruction& in = program_.bodies[b].instructions[k];
        if (k > 0) in.waits.push_back(done(b, k - 1));
        for (BodyId before = 0; before < kBodies; ++before) {
          in.waits_before.emplace_back();
          const auto& list = program_.bodies[before].instructions;
          for (size_t j = 0; j < list.size(); ++j)
            if (touches(list[j], in.operands[0].buffer) || touches(list[j], in.operands[1].buffer))
              in.waits_before.back().push_back(done(before, j));
        }
      }
  }
  static bool touches(const Instruction& in, BufferId buffer) {
    return in.operands[0].buffer == buffer || in.operands[1].buffer == buffer;
  }

  std::mt19937_64 random_;
  Program program_;
  std::vector<uint64_t> bytes_{0, 0};
};

// What a Session sets up, for a program without a model.
struct Rig {
  explicit Rig(const Program& program) : device(make_cuda_device(0)), host(program.arena_bytes[kHost]) {
    plan.program = program;
    Accelerator& accelerator = *device->accelerator();
    arena = accelerator.allocate(program.arena_bytes[kDevice]);
    pinned = accelerator.pin(host.span());
    streams = accelerator.make_streams(longest_streams(plan.program));
    runner.emplace(plan, Memory{{arena.get(), host.data()}, nullptr, {}, streams.get()}, *device,
                   UpdateRules{}, 1);
  }
  uint64_t& slot(BufferId ring, uint64_t ticket) {
    return *reinterpret_cast<uint64_t*>(runner->ring_slot(ring, ticket));
  }

  std::unique_ptr<Device> device;
  Arena host;
  Plan plan;
  std::shared_ptr<std::byte> arena;
  std::shared_ptr<void> pinned;
  std::unique_ptr<Streams> streams;
  std::optional<Runner> runner;
};

// Returns the number of bodies that brought another value than they were given.
int wrong_values(Rig& rig, Executor& executor, uint64_t tickets, uint64_t seed) {
  std::mt19937_64 random(seed);
  int wrong = 0;
  for (uint64_t ticket = 1; ticket <= tickets; ++ticket) {
    executor.make_room();
    if (ticket > 2) wrong += rig.slot(1, ticket - 2) != ticket - 2;
    rig.slot(0, ticket) = ticket;
    executor.issue(static_cast<BodyId>(random() % kBodies), {ticket, 0});
    if (random() % 16 != 0) continue;
    executor.wait(ticket);
    wrong += rig.slot(1, ticket) != ticket;
  }
  executor.wait(tickets);
  return wrong;
}

TEST(StreamExecutor, EveryValueArrivesInEveryOrder) {
  for (const uint32_t seed : {0u, 1u, 2u, 3u, 4u, 5u}) {
    emulation::set_up({.seed = seed, .delay_microseconds_max = seed % 2 ? 20 : 0});
    const Hops hops(seed);
    Rig rig(hops.program());
    const auto executor =
        make_threaded_executor(rig.plan.program, *rig.runner, {.streams = rig.streams.get()});
    EXPECT_EQ(wrong_values(rig, *executor, 1500, seed), 0) << "seed " << seed;
    if (executor->error()) std::rethrow_exception(executor->error());
  }
}

// The list executors can also enqueue on streams.
TEST(StreamExecutor, ShuffledListsBringTheValues) {
  emulation::set_up({.seed = 7});
  const Hops hops(7);
  for (const ExecutorKind kind : {ExecutorKind::serial, ExecutorKind::shuffled}) {
    Rig rig(hops.program());
    const auto executor =
        make_list_executor(rig.plan.program, *rig.runner,
                           {.kind = kind,
                            .seed = 3,
                            .make_queue = [](bool) { return make_io_queue(&kThreadBackend, 4, {}, nullptr); },
                            .streams = rig.streams.get()});
    EXPECT_EQ(wrong_values(rig, *executor, 300, 7), 0);
  }
}

// Wraps streams so that they never wait for each other, as if waits were called before their events were
// recorded. The emulation's orders show this fault, so that the tests above would have found it.
class CarelessStreams final : public ForwardedStreams {
 public:
  using ForwardedStreams::ForwardedStreams;
  void wait_for(LaneId, const Mark&) override {}
};

TEST(StreamExecutor, AMissingWaitShows) {
  int wrong = 0;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    emulation::set_up({.seed = seed, .delay_microseconds_max = 50});
    const Hops hops(seed);
    Rig rig(hops.program());
    CarelessStreams careless(*rig.streams);
    const auto executor = make_threaded_executor(rig.plan.program, *rig.runner, {.streams = &careless});
    wrong += wrong_values(rig, *executor, 1000, seed);
  }
  EXPECT_GT(wrong, 0);
}

// The record of every hop, on any lane, begins after the hop before it has ended. A profiler finds the
// instructions' names.
TEST(StreamExecutor, RecordsAndRangesOfStreams) {
  emulation::set_up({.delay_microseconds_max = 200});
  const Hops hops(4);
  Rig rig(hops.program());
  const auto executor = make_threaded_executor(rig.plan.program, *rig.runner, {.streams = rig.streams.get()});
  double before = steady_seconds();
  int named = 0;  // streams that waited for the hop before
  for (uint64_t ticket = 1; ticket <= 50; ++ticket) {
    const auto body = static_cast<BodyId>(ticket % kBodies);
    executor->make_room();
    executor->wait(executor->issue(body, {ticket, 0}));
    double end = before - kClockSkew;
    const auto& list = rig.plan.program.bodies[body].instructions;
    for (uint32_t i = 0; i < list.size(); ++i) {  // each hop waits for the one before
      const TraceRecord* record = executor->trace().find(list[i].lane, ticket, i);
      ASSERT_NE(record, nullptr);
      EXPECT_GE(record->begin, end - kClockSkew);
      EXPECT_GE(record->end, record->begin);
      EXPECT_LE(record->blocked_since, record->begin);
      if (i > 0 && rig.streams->has(list[i].lane) && record->blocked_since < record->begin)
        named += record->blocked_on == list[i - 1].lane;
      end = record->end;
    }
    const double now = steady_seconds();
    EXPECT_LE(end, now + kClockSkew);
    before = now;
  }
  EXPECT_GT(named, 0);
  const std::map<std::string, int> ranges = emulation::ranges.counts();
  for (const Body& body : rig.plan.program.bodies)
    for (const Instruction& in : body.instructions)
      EXPECT_TRUE(ranges.contains(instruction_name(rig.plan.program, body, in)));
}

// Streams that do nothing, at times that were made up.
class TimedStreams final : public Streams {
 public:
  using Times = std::map<std::pair<LaneId, uint32_t>, Interval>;  // by lane and number
  // Every further ticket is `period` later.
  TimedStreams(Times times, double period) : times_(std::move(times)), period_(period) {}
  bool has(LaneId lane) const override { return lane <= kD2hLane; }
  void enter_thread() override {}
  void begin(const Mark&) override {}
  void end(const Mark&) override {}
  void wait_for(LaneId, const Mark&) override {}
  void synchronize(const Mark& mark) override {
    if (mark.ticket == lost_at) throw Error(ExitCode::environment, "Lost.", "Find it.");
  }
  bool is_done(const Mark&) override { return true; }
  Interval interval(const Mark& mark) override {
    const double later = static_cast<double>(mark.ticket - 1) * period_;
    const Interval& first = times_.at({mark.lane, mark.number});
    return {first.begin + later, first.end + later};
  }
  void enter_range(const char*) override {}
  void leave_range() override {}
  void copy(LaneId, void*, const void*, uint64_t) override {}
  void copy_inside(LaneId, void*, const void*, uint64_t) override {}
  void zero(LaneId, void*, uint64_t) override {}

  uint64_t lost_at = 0;  // ticket

 private:
  const Times times_;
  const double period_;
};

// Instructions as {lane, waits, waits on the body before}, all of them copies of the same bytes.
struct Copy {
  LaneId lane;
  std::vector<Wait> waits, before;
};
Program copies(const std::vector<Copy>& list) {
  Program p;
  p.machine = machine_of({.device = 1 << 20, .host = 1 << 20, .nvme = std::nullopt});
  p.arena_bytes = {kStride, kStride};
  Buffer b;
  b.name = "b";
  b.cuts = {0, sizeof(uint64_t)};
  b.permanent = true;
  b.home = kHost;
  p.buffers = {b};
  Body body;
  body.name = "body";
  body.predecessors = {0};
  for (const Copy& c : list) {
    Instruction in;
    in.lane = c.lane;
    in.operands = {{0, 0, 1, Access::read}, {0, 0, 1, Access::write}};
    in.places = {{kHost, 0}, {kDevice, 0}};
    in.waits = c.waits;
    in.waits_before = {c.before};
    body.instructions.push_back(in);
  }
  p.bodies = {body};
  return p;
}

// An executor of copies(list) over streams with made-up times.
struct TimedRig {
  TimedRig(const std::vector<Copy>& list, TimedStreams& streams) {
    plan.program = copies(list);
    runner.emplace(plan, Memory{{device.data(), host.data()}, nullptr, {}, &streams}, *reference,
                   UpdateRules{}, 1);
    executor = make_threaded_executor(plan.program, *runner, {.streams = &streams});
  }
  const TraceRecord& record(uint64_t ticket, uint32_t instruction) const {
    const LaneId lane = plan.program.bodies[0].instructions[instruction].lane;
    const TraceRecord* const found = executor->trace().find(lane, ticket, instruction);
    CHECK(found != nullptr, "no record");
    return *found;
  }
  std::unique_ptr<Device> reference = make_reference_device();
  Arena device{kStride}, host{kStride};
  Plan plan;
  std::optional<Runner> runner;
  std::unique_ptr<Executor> executor;
};

const std::vector<Copy> kBlocked = {
    {kOptimizerLane, {}, {}},
    {kH2dLane, {{kOptimizerLane, 1}}, {{kD2hLane, 1}}},
    {kComputeLane, {{kH2dLane, 1}}, {}},
    {kH2dLane, {}, {}},
    {kComputeLane, {}, {}},
    {kComputeLane, {{kH2dLane, 2}, {kOptimizerLane, 1}}, {{kD2hLane, 1}}},
    {kD2hLane, {{kH2dLane, 2}, {kComputeLane, 3}}, {}},
};

TEST(StreamExecutor, RecordsNameWhatAStreamWasBlockedOn) {
  const double start = steady_seconds() + 1000;  // later than any time of host lanes
  const auto at = [&](double begin, double end) { return Streams::Interval{start + begin, start + end}; };
  TimedStreams streams({{{kH2dLane, 0}, at(0, 10)},
                        {{kH2dLane, 1}, at(10, 12)},
                        {{kComputeLane, 0}, at(11, 20)},
                        {{kComputeLane, 1}, at(20, 30)},
                        {{kComputeLane, 2}, at(30, 35)},
                        {{kD2hLane, 0}, at(36, 40)}},
                       100);
  TimedRig rig(kBlocked, streams);
  const double before = steady_seconds();
  for (int i = 0; i < 2; ++i) {
    rig.executor->make_room();
    rig.executor->issue(0, {});
  }
  rig.executor->wait(2);
  const double after = steady_seconds();
  struct Expected {
    uint32_t instruction;
    LaneId lane;
    uint32_t count;
    double since;  // in the second body, after `start`
  };
  for (const Expected& e : {Expected{1, kD2hLane, 1, 12}, {2, kH2dLane, 1, 35}, {6, kComputeLane, 3, 40}}) {
    const TraceRecord& first = rig.record(1, e.instruction);
    EXPECT_EQ(first.blocked_on,
              e.lane == kD2hLane ? LaneId{kOptimizerLane} : e.lane);  // no body comes before the first
    EXPECT_EQ(first.blocked_count, e.count);
    EXPECT_GE(first.blocked_since, before);  // since it was issued
    EXPECT_LE(first.blocked_since, after);
    const TraceRecord& second = rig.record(2, e.instruction);
    EXPECT_EQ(second.blocked_on, e.lane);
    EXPECT_EQ(second.blocked_count, e.count);
    EXPECT_EQ(second.blocked_since, start + e.since);
  }
  for (const uint64_t ticket : {1, 2})
    for (const uint32_t instruction : {3, 4, 5}) {  // what they wait for was done before the lane was free
      const TraceRecord& record = rig.record(ticket, instruction);
      EXPECT_EQ(record.blocked_since, record.begin);
      EXPECT_EQ(record.blocked_count, 0u);
    }
}

TEST(StreamExecutor, AfterALossEveryInstructionIsCounted) {
  TimedStreams streams({{{kH2dLane, 0}, {}},
                        {{kH2dLane, 1}, {}},
                        {{kComputeLane, 0}, {}},
                        {{kComputeLane, 1}, {}},
                        {{kComputeLane, 2}, {}},
                        {{kD2hLane, 0}, {}}},
                       0);
  streams.lost_at = 2;
  TimedRig rig(kBlocked, streams);
  for (int i = 0; i < 4; ++i) {
    rig.executor->make_room();
    rig.executor->issue(0, {});
  }
  rig.executor->wait(4);
  ASSERT_TRUE(rig.executor->error());
  EXPECT_THROW(std::rethrow_exception(rig.executor->error()), Error);
  rig.executor->issue(0, {});  // still in flight when the executor ends
}

}  // namespace
}  // namespace sluice
