// What an instruction costs the host beside its work: the threads of the lanes hand out instructions whose
// work is next to nothing.
//
//   launch_bench [--rounds N] [--small]
//
// A step is like one of a model of 48 layers whose state lies on a drive. For each layer, a shard is read,
// copied to the device, used there, copied back, updated and written, each on its lane. A lane is at most two
// layers ahead of the next one. The work of an instruction is a copy of 8 bytes, or on the compute lane the
// rounding of 64 numbers. The step runs
//   - on one thread, in the order of the list: the peer, which wakes nobody;
//   - over streams that do nothing, so that lanes never sleep for long;
//   - over streams whose computes take 100 us each, so that the lanes sleep most of the time, as in training;
//   - over the cuda device, where there is one;
//   - on two ranks, where there are two GPUs and NCCL: another step, of 48 collectives that gather 8 bytes of
//     each rank. Each waits for a compute, and the next compute waits for it.
// Prints by instruction, as medians of rounds in turn: microseconds of wall time, microseconds of processor
// time of all threads together, and how often a thread was switched. --small: few steps, to show that the
// benchmark works.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/run/execute/executor.h"
#include "engine/run/ranks/ranks.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/nccl.h"
#include "gpu/machine.h"
#include "offload/arena.h"
#include "offload/io/backends.h"
#include "tools/bench/median.h"
#include "tools/benchmarks/bench_main.h"

namespace sluice {
namespace {

constexpr uint32_t kLayers = 48, kAhead = 2;
constexpr int kRanks = 2;
constexpr TierId kDevice = 0, kHost = 1;
constexpr uint64_t kElements = 64, kBytes = 4096;  // of a rounding; of each arena
constexpr std::chrono::microseconds kComputeTime{100};

// The lanes that a layer's shard passes, in order.
constexpr LaneId kWay[] = {kNvmeReadLane, kH2dLane, kComputeLane, kD2hLane, kOptimizerLane, kNvmeWriteLane};
constexpr size_t kStops = std::size(kWay);

// Buffers 0 and 1 lie in host memory, the others on the device. Copies read and write 0, 1 and 2. A rounding
// reads 3 and writes 4. An all-gather reads 2 and writes 5.
Program program_of_buffers() {
  Program p;
  p.machine = machine_of({.device = kBytes, .host = kBytes, .nvme = std::nullopt}, true);
  p.processes = {{"all", kRanks, 1}};
  p.arena_bytes = {kBytes, kBytes};
  for (const uint64_t bytes :
       {sizeof(uint64_t), sizeof(uint64_t), sizeof(uint64_t), kElements * sizeof(float),
        kElements * sizeof(float), kRanks * sizeof(uint64_t)}) {
    const uint64_t b = p.buffers.size();
    Buffer buffer;
    buffer.name = "b" + std::to_string(b);
    buffer.cuts = {0, bytes};
    buffer.permanent = true;
    buffer.home = b < 2 ? kHost : kDevice;
    buffer.home_offset = b * 512;
    p.buffers.push_back(buffer);
  }
  return p;
}

// An instruction that reads one buffer and writes another.
Instruction between(const Program& p, BufferId from, BufferId to) {
  Instruction in;
  in.operands = {{from, 0, 1, Access::read}, {to, 0, 1, Access::write}};
  for (const BufferId b : {from, to}) in.places.push_back({p.buffers[b].home, p.buffers[b].home_offset});
  return in;
}

// Makes `in`, which reads `from` and writes `to`, the instruction of a new task.
void add_task(Body& body, TaskKind kind, Role from, Role to, Instruction& in) {
  in.operands[0].role = from, in.operands[1].role = to;
  in.task = static_cast<uint32_t>(body.tasks.size());
  body.tasks.push_back({kind});
  body.tasks.back().operands = in.operands;
}

Body empty_step() {
  Body body;
  body.name = "step";
  body.predecessors = {0};
  return body;
}

Program step_of_copies() {
  Program p = program_of_buffers();
  Body body = empty_step();
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    for (size_t stop = 0; stop < kStops; ++stop) {
      const LaneId lane = kWay[stop];
      Instruction in = lane == kH2dLane       ? between(p, 1, 2)
                       : lane == kD2hLane     ? between(p, 2, 1)
                       : lane == kComputeLane ? between(p, 3, 4)
                                              : between(p, 0, 1);
      in.lane = lane;
      if (lane == kComputeLane) add_task(body, TaskKind::round, Role::accumulator, Role::gradient, in);
      if (stop > 0) in.waits.push_back({kWay[stop - 1], layer + 1});
      if (stop + 1 < kStops && layer >= kAhead) in.waits.push_back({kWay[stop + 1], layer + 1 - kAhead});
      in.waits_before.emplace_back();
      if (stop == 0) in.waits_before.back().push_back({kWay[kStops - 1], layer + 1});
      body.instructions.push_back(in);
    }
  p.bodies = {body};
  return p;
}

Program step_of_collectives() {
  Program p = program_of_buffers();
  Body body = empty_step();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    Instruction gather = between(p, 2, 5), compute = between(p, 3, 4);
    gather.lane = kCollectiveLane, compute.lane = kComputeLane;
    add_task(body, TaskKind::gather, Role::part, Role::whole, gather);
    add_task(body, TaskKind::round, Role::accumulator, Role::gradient, compute);
    if (layer > 0) gather.waits = {{kComputeLane, layer}};
    compute.waits = {{kCollectiveLane, layer + 1}};
    gather.waits_before.resize(1), compute.waits_before.resize(1);
    body.instructions.push_back(gather), body.instructions.push_back(compute);
  }
  p.bodies = {body};
  return p;
}

// Streams whose instructions do nothing, but take a while on the compute lane.
class IdleStreams final : public Streams {
 public:
  explicit IdleStreams(std::chrono::microseconds compute_time) : compute_time_(compute_time) {}
  bool has(LaneId lane) const override { return lane <= kD2hLane; }
  void enter_thread() override {}
  void begin(const Mark&) override {}
  void end(const Mark&) override {}
  void wait_for(LaneId, const Mark&) override {}
  void synchronize(const Mark& mark) override {
    if (mark.lane == kComputeLane && compute_time_.count() > 0) std::this_thread::sleep_for(compute_time_);
  }
  bool is_done(const Mark&) override { return true; }
  Interval interval(const Mark&) override {
    const double now = steady_seconds();
    return {now, now};
  }
  void enter_range(const char*) override {}
  void leave_range() override {}
  void copy(LaneId, void*, const void*, uint64_t) override {}
  void copy_inside(LaneId, void*, const void*, uint64_t) override {}
  void zero(LaneId, void*, uint64_t) override {}

 private:
  const std::chrono::microseconds compute_time_;
};

struct Costs {  // by instruction
  double wall_microseconds = 0, processor_microseconds = 0, switches = 0;
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

class Launches {
 public:
  // If on_gpu, on the cuda device whose number is the rank's. Otherwise on the reference device, over
  // `streams`, or on one thread if they are nullptr. Each of several ranks makes its own Launches, and the
  // ranks exchange.
  Launches(bool on_gpu, std::unique_ptr<Streams> streams, Ranks ranks = {})
      : device_(on_gpu ? make_cuda_device(ranks.rank()) : make_reference_device()),
        host_(kBytes),
        streams_(std::move(streams)) {
    plan_.program = ranks.size() > 1 ? step_of_collectives() : step_of_copies();
    const auto count = static_cast<uint32_t>(ranks.size());
    plan_.lowering.mesh = Mesh({count, 1}, count);
    plan_.lowering.groups.resize(1);
    plan_.lowering.groups[0].shards = {0, kElements};
    plan_.lowering.groups[0].accumulators.resize(1);
    std::byte* device_memory = nullptr;
    if (Accelerator* const accelerator = device_->accelerator()) {
      if (ranks.size() > 1) {
        connected_ = accelerator->connect(*ranks.lane);
        if (!connected_.communicator)
          throw Error(ExitCode::environment, "The GPUs are not connected: " + connected_.reason + ".",
                      "See what `sluice doctor` says of NCCL.");
        ranks.device = connected_.communicator.get();
      }
      device_arena_ = accelerator->allocate(kBytes);
      pinned_ = accelerator->pin(host_.span());
      streams_ = accelerator->make_streams(longest_streams(plan_.program));
      device_->warm_up({device_arena_.get(), kBytes});
      accelerator->finish();
      device_memory = device_arena_.get();
    } else {
      cpu_arena_ = Arena(kBytes);
      device_memory = cpu_arena_.data();
    }
    runner_.emplace(plan_, Memory{{device_memory, host_.data()}, nullptr, {}, streams_.get()}, *device_,
                    UpdateRules{}, 1, ranks);
    executor_ =
        make_executor(plan_.program, *runner_,
                      {.kind = streams_ ? ExecutorKind::threaded : ExecutorKind::serial,
                       .make_queue = [](bool) { return make_io_queue(&kThreadBackend, 1, {}, nullptr); },
                       .streams = streams_.get()});
  }

  // Two steps are in flight, as in training.
  Costs run(int steps) {
    rusage before{}, after{};
    CHECK(getrusage(RUSAGE_SELF, &before) == 0, "getrusage");
    const double begin = steady_seconds();
    uint64_t ticket = 0;
    for (int step = 0; step < steps; ++step) {
      executor_->make_room();
      ticket = executor_->issue(0, {});
    }
    executor_->wait(ticket);
    const double seconds = steady_seconds() - begin;
    CHECK(getrusage(RUSAGE_SELF, &after) == 0, "getrusage");
    if (executor_->error()) std::rethrow_exception(executor_->error());
    const auto processor = [](const rusage& use) {
      return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
    };
    const auto switches = [](const rusage& use) { return static_cast<double>(use.ru_nvcsw + use.ru_nivcsw); };
    const double count = static_cast<double>(steps) * instructions();
    return {seconds * 1e6 / count, (processor(after) - processor(before)) * 1e6 / count,
            (switches(after) - switches(before)) / count};
  }

  double instructions() const {  // of a step
    return static_cast<double>(plan_.program.bodies[0].instructions.size());
  }

 private:
  std::unique_ptr<Device> device_;
  Arena host_, cpu_arena_;
  Plan plan_;
  AcceleratorRanks connected_;
  std::shared_ptr<std::byte> device_arena_;
  std::shared_ptr<void> pinned_;
  std::unique_ptr<Streams> streams_;
  std::optional<Runner> runner_;
  std::unique_ptr<Executor> executor_;
};

// Both ranks run the step of collectives. Processor time and switches are summed over both ranks.
Costs run_ranks(int steps) {
  Costs first;
  const auto rank = [&](const Ranks& ranks) {
    Launches launches(true, nullptr, ranks);
    launches.run(2);  // warms up
    ranks.barrier();
    const Costs costs = launches.run(steps);
    ranks.barrier();
    if (ranks.is_first()) first = costs;
  };
  run_in_process(kRanks, rank, [](const std::exception& e) { CHECK(false, e.what()); });
  return first;
}

struct Row {
  std::string name;
  std::function<Costs()> run;
  std::vector<Costs> rounds = {};

  double middle(double Costs::*field) const {
    std::vector<double> values;
    for (const Costs& costs : rounds) values.push_back(costs.*field);
    return median(values);
  }
};

void measure(int rounds, bool small) {
  const auto steps = [small](int many) { return small ? 2 : many; };
  std::vector<Row> rows;
  const auto add = [&](const char* name, int count, bool on_gpu, std::unique_ptr<Streams> streams) {
    const auto launches = std::make_shared<Launches>(on_gpu, std::move(streams));
    launches->run(2);  // warms up
    rows.push_back({name, [launches, count = steps(count)] { return launches->run(count); }});
  };
  add("one thread, in the order of the list", 300, false, nullptr);
  add("streams that do nothing", 100, false, std::make_unique<IdleStreams>(std::chrono::microseconds(0)));
  add("streams, computes of 100 us", 100, false, std::make_unique<IdleStreams>(kComputeTime));
  if (cuda_status(0).available) add("the cuda device", 50, true, nullptr);
  if (cuda_status(kRanks - 1).available && open_nccl().value)
    rows.push_back(
        {"two ranks, 48 collectives, 48 computes", [count = steps(50)] { return run_ranks(count); }});
  for (int round = 0; round < rounds; ++round)
    for (Row& row : rows) row.rounds.push_back(row.run());
  fmt::print("{} instructions a step on {} lanes, medians of {} rounds; an instruction takes\n",
             kLayers * kStops, kStops, rounds);
  fmt::print("{:40}{:>10}{:>14}{:>11}{:>24}\n", "", "wall us", "processor us", "switches",
             "processor / one thread");
  const double alone = rows[0].middle(&Costs::processor_microseconds);
  for (const Row& row : rows) {
    const double processor = row.middle(&Costs::processor_microseconds);
    fmt::print("{:40}{:10.2f}{:14.2f}{:11.2f}{:24.1f}\n", row.name, row.middle(&Costs::wall_microseconds),
               processor, row.middle(&Costs::switches), alone > 0 ? processor / alone : 0);
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  int rounds = 7;
  bool small = false;
  sluice::BenchMain bench("What an instruction costs the host beside its work.");
  bench.add("--rounds", rounds, "timed rounds");
  bench.add_small(small);
  return bench.run(argc, argv, [&] { sluice::measure(small ? 1 : rounds, small); });
}
