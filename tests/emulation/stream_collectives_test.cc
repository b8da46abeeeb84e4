// Tests collectives on a stream, over two emulated GPUs and the stand-in for NCCL. Work that follows a
// collective is enqueued before the collective has ended. Whatever happens to the ranks while a collective is
// in flight, each rank ends, with one sentence.
#include <gtest/gtest.h>

#include <atomic>
#include <regex>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/run/execute/executor.h"
#include "gpu/cuda/device.h"
#include "gpu/machine.h"
#include "offload/arena.h"
#include "tests/emulation/nothing_on_the_gpu.h"
#include "tests/support/forwarded_streams.h"

namespace sluice {
namespace {

constexpr int kRanks = 2;
constexpr TierId kDevice = 0, kHost = 1;
constexpr uint64_t kStride = 64, kElements = 64;
constexpr double kSoon = 10;  // seconds: far more than a rank takes to end, far less than the usual patience
enum BufferName : BufferId { kIn, kOut, kPart, kAll, kSums, kRounded, kWeights };
enum BodyName : BodyId { kStep, kFailing };

// A step copies a number to the device, gathers the numbers of both ranks, computes, and copies the numbers
// back. A failing step also loads weights, on lane `optimizer`.
Program steps() {
  Program p;
  p.machine = machine_of({.device = 1 << 20, .host = 1 << 20, .nvme = std::nullopt}, true);
  p.processes = {{"all", kRanks, 1}};
  p.rings = {{"train"}};
  p.arena_bytes = {0, 0};
  const auto add = [&](TierId home, uint8_t ring, uint64_t bytes) {
    Buffer b;
    b.name = "b" + std::to_string(p.buffers.size());
    b.cuts = {0, bytes};
    b.permanent = true;
    b.home = home;
    b.ring = ring;
    b.home_offset = p.arena_bytes[home];
    b.slot_stride = kStride;
    p.arena_bytes[home] += std::max(Ring{}.slots * kStride, bytes);
    p.buffers.push_back(b);
  };
  add(kHost, 0, sizeof(uint64_t)), add(kHost, 0, kRanks * sizeof(uint64_t));
  add(kDevice, kNoRing, sizeof(uint64_t)), add(kDevice, kNoRing, kRanks * sizeof(uint64_t));
  add(kDevice, kNoRing, kElements * sizeof(float)), add(kDevice, kNoRing, kElements * sizeof(float));
  add(kHost, kNoRing, kElements * sizeof(float));
  const auto instruction = [&](LaneId lane, const std::vector<Operand>& operands, std::vector<Wait> waits,
                               const std::vector<Wait>& before) {
    Instruction in;
    in.lane = lane;
    in.operands = operands;
    for (const Operand& o : operands)
      in.places.push_back({p.buffers[o.buffer].home, p.buffers[o.buffer].home_offset});
    in.waits = std::move(waits);
    in.waits_before = {before, before};
    return in;
  };
  for (const char* name : {"step", "failing"}) {
    Body body;
    body.name = name;
    body.advance = {1};
    body.predecessors = {kStep, kFailing};
    const auto add_task = [&](TaskKind kind, const std::vector<Role>& roles, Instruction in) {
      for (size_t k = 0; k < roles.size(); ++k) in.operands[k].role = roles[k];
      in.task = static_cast<uint32_t>(body.tasks.size());
      body.tasks.push_back({kind});
      body.tasks.back().operands = in.operands;
      body.instructions.push_back(in);
    };
    body.instructions.push_back(
        instruction(kH2dLane, {{kIn, 0, 1}, {kPart, 0, 1, Access::write}}, {}, {{kCollectiveLane, 1}}));
    add_task(TaskKind::gather, {Role::part, Role::whole},
             instruction(kCollectiveLane, {{kPart, 0, 1}, {kAll, 0, 1, Access::write}}, {{kH2dLane, 1}},
                         {{kD2hLane, 1}}));
    add_task(TaskKind::round, {Role::accumulator, Role::gradient},
             instruction(kComputeLane, {{kSums, 0, 1}, {kRounded, 0, 1, Access::write}},
                         {{kCollectiveLane, 1}}, {}));
    body.instructions.push_back(
        instruction(kD2hLane, {{kAll, 0, 1}, {kOut, 0, 1, Access::write}}, {{kComputeLane, 1}}, {}));
    if (body.name == "failing")
      add_task(TaskKind::load, {Role::weights},
               instruction(kOptimizerLane, {{kWeights, 0, 1, Access::write}}, {}, {}));
    p.bodies.push_back(body);
  }
  return p;
}

// Counts what was enqueued on the compute lane.
class CountedStreams final : public ForwardedStreams {
 public:
  using ForwardedStreams::ForwardedStreams;
  void end(const Mark& mark) override {
    ForwardedStreams::end(mark);
    if (mark.lane == kComputeLane) ++computes_;
  }
  int computes() const { return computes_; }

 private:
  std::atomic<int> computes_{0};
};

// The compute's kernel does nothing: it would run on fibers, which the thread sanitizer does not know.
emulation::EmulatedGpu two_gpus(uint32_t seed) {
  return {.seed = seed, .count = kRanks, .idle_kernels = "optimize.cu"};
}

// What a Session sets up for a rank.
class Rank {
 public:
  // `aborts`: an error of one lane ends the other rank, too.
  Rank(int rank, Communicator& lane, bool aborts)
      : device_(make_cuda_device(rank)), host_(1 << 20), lane_(lane) {
    plan_.program = steps();
    plan_.model.groups = {{.name = "g", .trainable = false, .parameters = {}, .elements = kElements}};
    plan_.lowering.groups.resize(1);
    plan_.lowering.groups[0].shards = {0, kElements};
    plan_.lowering.mesh = Mesh({kRanks, 1}, kRanks);
    Accelerator& accelerator = *device_->accelerator();
    connected_ = accelerator.connect(lane);
    CHECK(connected_.communicator != nullptr, connected_.reason);
    arena_ = accelerator.allocate(plan_.program.arena_bytes[kDevice]);
    pinned_ = accelerator.pin(host_.span());
    streams_ = accelerator.make_streams(longest_streams(plan_.program));
    device_->warm_up({arena_.get(), plan_.program.arena_bytes[kDevice]});
    accelerator.finish();
    counted_.emplace(*streams_);
    Ranks ranks;
    ranks.lane = &lane;
    ranks.device = connected_.communicator.get();
    runner_.emplace(plan_, Memory{{arena_.get(), host_.data()}, nullptr, {}, streams_.get()}, *device_,
                    UpdateRules{}, 1, ranks);
    runner_->set_hooks({.load =
                            [this](const ShardView&) {
                              released_.wait(false);
                              throw Error(ExitCode::io, "A drive is broken.", "Mend it.");
                            },
                        .save = nullptr});
    ExecutorOptions options;
    options.streams = &*counted_;
    if (aborts) options.on_error = [&lane] { lane.abort("A rank failed."); };
    executor_ = make_threaded_executor(plan_.program, *runner_, options);
  }
  ~Rank() { let_fail(); }

  int rank() const { return lane_.rank(); }
  Communicator& lane() { return lane_; }
  void set_patience(double seconds) { connected_.communicator->set_patience(seconds); }
  void issue(uint64_t ticket, BodyName body = kStep) {
    executor_->make_room();
    slot(kIn, ticket)[0] = value(rank(), ticket);
    executor_->issue(body, {ticket, 0});
  }
  void let_fail() {  // lets the failing bodies fail
    released_ = true;
    released_.notify_all();
  }
  void wait(uint64_t ticket) { executor_->wait(ticket); }
  void stop() { executor_.reset(); }
  int computes() const { return counted_->computes(); }  // that were enqueued so far

  // Whether the ticket's body has brought the numbers of both ranks.
  bool has_all(uint64_t ticket) {
    const uint64_t* const found = slot(kOut, ticket);
    return found[0] == value(0, ticket) && found[1] == value(1, ticket);
  }
  // The error's code and text; {done, ""} where there is none.
  std::pair<ExitCode, std::string> error() const {
    try {
      if (executor_->error()) std::rethrow_exception(executor_->error());
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ExitCode::done, ""};
  }

 private:
  static uint64_t value(int rank, uint64_t ticket) { return 1000 * ticket + static_cast<uint64_t>(rank); }
  uint64_t* slot(BufferId ring, uint64_t ticket) {
    return reinterpret_cast<uint64_t*>(runner_->ring_slot(ring, ticket));
  }

  std::unique_ptr<Device> device_;
  Arena host_;
  Plan plan_;
  Communicator& lane_;
  AcceleratorRanks connected_;
  std::shared_ptr<std::byte> arena_;
  std::shared_ptr<void> pinned_;
  std::unique_ptr<Streams> streams_;
  std::optional<CountedStreams> counted_;
  std::optional<Runner> runner_;
  std::atomic<bool> released_{false};
  std::unique_ptr<Executor> executor_;
};

// Runs `work` for each rank on a thread of its own, and returns the seconds that this took.
double on_both(const std::function<void(Rank&)>& work, bool aborts = true) {
  const auto lanes = make_in_process_communicators(kRanks);
  const double begin = steady_seconds();
  std::vector<std::thread> threads;
  for (int i = 0; i < kRanks; ++i)
    threads.emplace_back([&, i] {
      Rank rank(i, *lanes[static_cast<size_t>(i)], aborts);
      work(rank);
    });
  for (std::thread& t : threads) t.join();
  return steady_seconds() - begin;
}

template <typename Condition>
bool comes_true(const Condition& condition) {
  const double begin = steady_seconds();
  while (!condition() && steady_seconds() - begin < kSoon)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

class StreamCollectives : public ::testing::Test {
 protected:
  void SetUp() override { emulation::set_up(two_gpus(1)); }
  void TearDown() override {
    expect_nothing_on_the_gpu();
    emulation::set_up({});
  }
};

TEST_F(StreamCollectives, EveryRankGetsThePartsOfAllInEveryOrder) {
  constexpr uint64_t kTickets = 200;
  for (const uint32_t seed : {0u, 1u, 2u, 3u}) {
    emulation::EmulatedGpu gpus = two_gpus(seed);
    gpus.delay_microseconds_max = seed % 2 ? 20 : 0;
    emulation::set_up(gpus);
    on_both([&](Rank& rank) {
      int wrong = 0;
      for (uint64_t ticket = 1; ticket <= kTickets; ++ticket) {
        rank.issue(ticket);
        if (ticket > 2) wrong += !rank.has_all(ticket - 2);
      }
      rank.wait(kTickets);
      EXPECT_EQ(rank.error(), std::pair(ExitCode::done, std::string()));
      EXPECT_EQ(wrong, 0) << "seed " << seed;
      EXPECT_TRUE(rank.has_all(kTickets));
    });
  }
}

// Rank 1 comes to the collectives of two steps only when rank 0 has enqueued what waits for them.
TEST_F(StreamCollectives, ComputesAreEnqueuedPastThem) {
  std::atomic<bool> enqueued{false};
  on_both([&](Rank& rank) {
    const bool is_late = rank.rank() == 1;
    EXPECT_TRUE(!is_late || comes_true([&] { return enqueued.load(); }));
    rank.issue(1), rank.issue(2);
    EXPECT_TRUE(is_late || comes_true([&] { return rank.computes() == 2; }));
    enqueued = true;
    rank.wait(2);
    EXPECT_TRUE(rank.has_all(1) && rank.has_all(2));
  });
}

TEST_F(StreamCollectives, OneThatOtherRanksDoNotComeToTakesThePatience) {
  std::atomic<bool> ended{false};
  const double seconds = on_both([&](Rank& rank) {
    if (rank.rank() == 1) {
      EXPECT_TRUE(comes_true([&] { return ended.load(); }));
      return;
    }
    rank.set_patience(0.25);
    rank.issue(1), rank.issue(2);
    rank.wait(2);
    EXPECT_EQ(rank.error(),
              std::pair(ExitCode::rank_lost,
                        std::string("Ranks have not answered by NCCL for 0.25 s: rank 0 waits at step 1 for "
                                    "instruction 1 of body step on lane collective (gather of b2).")));
    ended = true;
  });
  EXPECT_LT(seconds, kSoon);
}

// Patience counts waits for other ranks only. It does not run out before a rank's own work lets a collective
// begin.
TEST_F(StreamCollectives, ThePatienceDoesNotCountOwnWork) {
  on_both([&](Rank& rank) {
    rank.set_patience(0.25);
    rank.lane().barrier();
    if (rank.rank() == 0) emulation::pause();
    rank.lane().barrier();
    rank.issue(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    rank.lane().barrier();
    if (rank.rank() == 0) emulation::resume();
    rank.wait(1);
    EXPECT_EQ(rank.error(), std::pair(ExitCode::done, std::string()));
    EXPECT_TRUE(rank.has_all(1));
  });
}

TEST_F(StreamCollectives, AnAbortEndsThoseInFlight) {
  const double seconds = on_both([&](Rank& rank) {
    rank.lane().barrier();
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return rank.lane().abort("rank 1 has had enough");
    }
    rank.issue(1), rank.issue(2);
    rank.wait(2);
    EXPECT_EQ(rank.error(), std::pair(ExitCode::rank_lost, std::string("rank 1 has had enough")));
  });
  EXPECT_LT(seconds, kSoon);
}

// Each of the first calls fails once, on either rank. That rank says why it failed, the other says that a
// rank failed.
TEST_F(StreamCollectives, AFailureOfNcclEndsThoseInFlight) {
  constexpr uint64_t kWarmUp = kRanks * 7;
  const std::regex own("NCCL's (exchange|ncclAllGather) says: remote error\\.");
  for (uint64_t call = 0; call < 4; ++call) {
    emulation::EmulatedGpu gpus = two_gpus(static_cast<uint32_t>(call));
    gpus.nccl_call_that_fails = kWarmUp + call;
    emulation::set_up(gpus);
    std::atomic<int> failed{0}, told{0};
    const double seconds = on_both([&](Rank& rank) {
      for (uint64_t ticket = 1; ticket <= 3; ++ticket) rank.issue(ticket);  // each in a slot of its own
      rank.wait(3);
      const auto [code, text] = rank.error();
      EXPECT_EQ(code, ExitCode::rank_lost);
      failed += std::regex_match(text, own);
      told += text == "A rank failed.";
    });
    EXPECT_EQ(failed, 1) << "call " << call;
    EXPECT_EQ(told, 1) << "call " << call;
    EXPECT_LT(seconds, kSoon);
  }
}

// A lane fails while the collectives of two steps are in flight, and nobody tells the ranks' communicator.
// The other rank comes to the first collective only. The second is given up, and what waits for it ends.
TEST_F(StreamCollectives, AnErrorOfAnotherLaneGivesUpThoseInFlight) {
  std::atomic<bool> failed{false};
  const auto work = [&](Rank& rank) {
    if (rank.rank() == 1) {
      EXPECT_TRUE(comes_true([&] { return failed.load(); }));
      rank.issue(1);
      return rank.wait(1);
    }
    rank.issue(1), rank.issue(2, kFailing);
    EXPECT_TRUE(comes_true([&] { return rank.computes() == 2; }));
    rank.let_fail();
    EXPECT_TRUE(comes_true([&] { return rank.error().first == ExitCode::io; }));
    failed = true;
    rank.wait(2);
    EXPECT_EQ(rank.error(), std::pair(ExitCode::io, std::string("A drive is broken.")));
    rank.lane().abort("rank 0 has ended");  // the other rank may still wait for the first collective
  };
  EXPECT_LT(on_both(work, false), kSoon);
}

// An executor that ends early, as after an exception of the trainer, leaves nothing in flight and reports no
// error to other ranks.
TEST_F(StreamCollectives, AnExecutorThatStopsGivesUpThoseInFlight) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    emulation::set_up(two_gpus(seed));
    std::atomic<bool> stops{false};
    const double seconds = on_both([&](Rank& rank) {
      if (rank.rank() == 1) {
        EXPECT_TRUE(comes_true([&] { return stops.load(); }));
        rank.issue(1), rank.issue(2);
        rank.wait(2);
        const auto [code, text] = rank.error();  // rank 0 may have sent all its parts
        EXPECT_TRUE(code == ExitCode::done || text == "the trainer of rank 0 has ended") << text;
        return;
      }
      rank.issue(1), rank.issue(2);
      EXPECT_TRUE(comes_true([&] { return rank.computes() == 2; }));
      stops = true;
      rank.stop();
      rank.lane().abort("the trainer of rank 0 has ended");
    });
    EXPECT_LT(seconds, kSoon);
  }
}

}  // namespace
}  // namespace sluice
