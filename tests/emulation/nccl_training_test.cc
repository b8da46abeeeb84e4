// Training of two and three ranks on emulated GPUs. Through the stand-in for NCCL it gives the same bits as
// through host memory. A rank that fails ends all ranks alike.
#include <gtest/gtest.h>

#include <mutex>

#include "engine/base/clock.h"
#include "engine/run/ranks/ranks.h"
#include "tests/emulation/emulated_command.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr const char* kModel = "gpt2:layers=2,width=32,heads=2,vocab=256,context=16";

class NcclTraining : public EmulatedRun {
 protected:
  // Every rank has a GPU of its own.
  static void set_up_gpus(uint32_t seed = 0) { emulation::set_up({.seed = seed, .count = 3}); }
  void SetUp() override {
    EmulatedRun::SetUp();
    set_up_gpus();
  }

  TestRun run_on(int64_t ranks, DType precision, const std::string& out) const {
    TestRun run;
    run.options = short_run(directory, kModel, text);
    run.options.numbers.precision = precision;
    run.options.batch.batch = 6;
    run.options.batch.micro_batch = 1;
    run.options.batch.steps = 3;
    run.options.run.out = directory / out;
    run.options.ranks.gpus = run.options.ranks.count = ranks;
    run.options.memory.device = {DeviceKind::cuda};
    run.arenas = {kRoomy, kRoomy, std::nullopt};
    run.threads = 1;
    return run;
  }

  // Returns the result of the first rank.
  static TestResult train_on(const TestRun& run) {
    TestResult first;
    std::mutex mutex;
    const auto rank = [&](const Ranks& ranks) {
      TestRun mine = run;
      mine.ranks = ranks;
      mine.options.memory.device.ordinal = ranks.rank();
      TestResult result = sluice::train(mine);
      const std::lock_guard lock(mutex);
      if (ranks.is_first()) first = std::move(result);
    };
    run_in_process(static_cast<int>(run.options.ranks.count), rank,
                   [](const std::exception& e) { ADD_FAILURE() << "a rank is stuck after: " << e.what(); });
    return first;
  }

  // The number of tasks of a kind, by the tier of their first operand.
  static std::map<std::string, uint64_t> places(const TestResult& result, TaskKind kind) {
    std::map<std::string, uint64_t> found;
    for (const Body& body : result.plan.program.bodies)
      for (const Instruction& in : body.instructions)
        if (in.task != kNoTask && body.tasks[in.task].kind == kind)
          ++found[result.plan.program.machine.tiers[in.places.at(0).tier].name];
    return found;
  }
  static void expect_in_device(const TestResult& result, std::initializer_list<TaskKind> kinds) {
    for (const TaskKind kind : kinds) {
      EXPECT_FALSE(places(result, kind).contains("host")) << task_kind_name(kind);
      EXPECT_GT(places(result, kind)["device"], 0u) << task_kind_name(kind);
    }
  }
};

TEST_F(NcclTraining, BitsAreThoseOfHostMemory) {
  struct Variant {
    const char* name;
    ExecutorKind executor;
    bool least;
    uint32_t seed;
  };
  constexpr Variant kVariants[] = {{"threaded", ExecutorKind::threaded, false, 1},
                                   {"threaded, least", ExecutorKind::threaded, true, 2},
                                   {"serial", ExecutorKind::serial, false, 0},
                                   {"shuffled, least", ExecutorKind::shuffled, true, 3}};
  for (const auto& [ranks, precision, stage] : {std::tuple(2, DType::bf16, 3), std::tuple(2, DType::f32, 1),
                                                std::tuple(2, DType::f16, 0), std::tuple(3, DType::f32, 3)}) {
    set_up_gpus();
    TestRun staged = run_on(ranks, precision, "staged");
    staged.options.ranks.zero = stage;
    const TestResult wanted = train_on(staged);
    const Tensors state = newest_tensors(staged.options.run.out);
    EXPECT_FALSE(places(wanted, TaskKind::gather).contains("device"));
    for (const Variant& v : kVariants) {
      SCOPED_TRACE(std::string(v.name) + ", stage " + std::to_string(stage) + ", " + dtype_name(precision));
      set_up_gpus(v.seed);
      TestRun run = staged;
      run.ranks_meet_in_device = true;
      run.executor = v.executor;
      run.options.run.out = directory / "nccl";
      if (v.least) run.arenas = least_arenas(run, true);
      const TestResult found = train_on(run);
      expect_in_device(found, {TaskKind::gather, TaskKind::exchange, TaskKind::sum});
      EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps));
      EXPECT_EQ(differences(newest_tensors(run.options.run.out), state), "");
      std::filesystem::remove_all(run.options.run.out);
    }
    std::filesystem::remove_all(staged.options.run.out);
  }
  expect_nothing_on_the_gpu();
}

// Factors are made in host memory and exchanged in device memory. All phases occur: a step of shared layers,
// one of whole gradients, then factors.
TEST_F(NcclTraining, BitsOfFactorsAreThoseOfHostMemory) {
  for (const auto& [ranks, precision, stage] :
       {std::tuple(2, DType::bf16, 0), std::tuple(3, DType::f32, 0), std::tuple(2, DType::f32, 1)}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
    set_up_gpus();
    TestRun staged = run_on(ranks, precision, "staged");
    staged.options.ranks.zero = stage;
    staged.options.ranks.compression.rank = 4;
    staged.options.ranks.compress_after = 2;
    staged.options.ranks.share_layers_until = 1;
    staged.options.batch.steps = 5;
    const TestResult wanted = train_on(staged);
    EXPECT_GT(places(wanted, TaskKind::compress)["host"], 0u);
    const Tensors state = newest_tensors(staged.options.run.out);
    for (const bool least : {false, true}) {
      set_up_gpus(static_cast<uint32_t>(least) + 1);
      TestRun run = staged;
      run.ranks_meet_in_device = true;
      run.executor = least ? ExecutorKind::shuffled : ExecutorKind::threaded;
      run.options.run.out = directory / "nccl";
      if (least) run.arenas = least_arenas(run, true);
      const TestResult found = train_on(run);
      expect_in_device(found, {TaskKind::gather, TaskKind::exchange, TaskKind::sum});
      EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << (least ? "least" : "roomy");
      EXPECT_EQ(differences(newest_tensors(run.options.run.out), state), "") << (least ? "least" : "roomy");
      std::filesystem::remove_all(run.options.run.out);
    }
    std::filesystem::remove_all(staged.options.run.out);
  }
  expect_nothing_on_the_gpu();
}

// Rows travel to experts and back between device memories, in one step or, over nodes, in two. The host reads
// from its memory which rows travel. On no rank do tokens choose experts evenly.
TEST_F(NcclTraining, BitsOfDividedExpertsAreThoseOfHostMemory) {
  constexpr const char* kModels[] = {
      "mixtral:layers=1,width=32,heads=2,kv_heads=1,ffn=48,vocab=256,context=16,experts=4,top=2",
      "gpt2-moe:layers=1,width=32,heads=2,vocab=256,context=16,experts=4,every=1,top=2,capacity=1.25,second="
      "random",
      // A rank makes 17 choices, so the second rank's choices begin at no multiple of 16 bytes.
      "mixtral:layers=1,width=32,heads=2,kv_heads=1,ffn=48,vocab=256,context=17,experts=4,top=1"};
  for (const auto& [model, ranks, precision, per_node, least] :
       {std::tuple(kModels[0], 2, DType::bf16, 0, false), std::tuple(kModels[1], 4, DType::f32, 2, true),
        std::tuple(kModels[2], 2, DType::bf16, 0, false)}) {
    SCOPED_TRACE(std::string(model) + ", " + std::to_string(ranks) + " ranks");
    const auto set_up = [](uint32_t seed) { emulation::set_up({.seed = seed, .count = 4}); };
    set_up(0);
    TestRun staged = run_on(ranks, precision, "staged");
    staged.options.model.model = model;
    staged.options.batch.batch = 4;
    staged.options.batch.steps = 2;
    staged.options.ranks.experts_over = ranks;
    staged.options.ranks.per_node = per_node;
    staged.options.batch.micro_batch = 1;
    const TestResult wanted = train_on(staged);
    EXPECT_FALSE(places(wanted, TaskKind::travel).contains("device"));
    const Tensors state = newest_tensors(staged.options.run.out);
    set_up(1);
    TestRun run = staged;
    run.ranks_meet_in_device = true;
    run.options.run.out = directory / "nccl";
    if (least) run.arenas = least_arenas(run, true);
    const TestResult found = train_on(run);
    expect_in_device(found, {TaskKind::travel, TaskKind::travel_back});
    EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps));
    EXPECT_EQ(differences(newest_tensors(run.options.run.out), state), "");
    std::filesystem::remove_all(run.options.run.out);
    std::filesystem::remove_all(staged.options.run.out);
  }
  expect_nothing_on_the_gpu();
}

// The trainer of one rank throws in mid-step: the others are somewhere in a collective.
TEST_F(NcclTraining, WhatOneRankThrowsEndsAll) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    set_up_gpus(seed);
    TestRun run = run_on(3, DType::f32, "thrown");
    run.ranks_meet_in_device = true;
    run.options.batch.steps = 20;
    EXPECT_EQ(told_when_one_throws(run, train_on), "thrown by the test");
    expect_nothing_on_the_gpu();
    std::filesystem::remove_all(run.options.run.out);
  }
}

// The command, on two GPUs.
class NcclCommand : public NcclTraining {
 protected:
  Words on_two_gpus(const std::string& out, const Words& more = {}) const {
    return train(out, 4, Words{"--device", "cuda", "--gpus", "2", "--gpu-mem", "400MiB"} + more);
  }
  static bool says(const Ended& ended, const std::string& text) {
    return ended.out.find(text) != std::string::npos;
  }
};

TEST_F(NcclCommand, SaysByWhatRanksExchange) {
  const Ended nccl = run_command(on_two_gpus("nccl"));
  EXPECT_EQ(nccl.code, ExitCode::done) << nccl.what;
  EXPECT_TRUE(says(nccl, "  ranks: 2, exchanging by NCCL 2.28.9\n")) << nccl.out;
  emulation::set_up({.count = 2, .nccl_version = 0});
  const Ended staged = run_command(on_two_gpus("staged"));
  EXPECT_EQ(staged.code, ExitCode::done) << staged.what;
  EXPECT_TRUE(says(staged,
                   "  ranks: 2, exchanging by threads of one process, through host memory (not by NCCL: on "
                   "rank 0 the emulated machine has none)\n"))
      << staged.out;
  EXPECT_EQ(differences(newest_tensors(directory / "nccl"), newest_tensors(directory / "staged")), "");
  emulation::set_up({.count = 1});
  const Ended none = run_command(on_two_gpus("none"));
  EXPECT_EQ(none.code, ExitCode::environment);
  EXPECT_EQ(none.what, "There is no GPU 1: this machine has 1.");
  const Ended alone = run_command(train("alone", 2, {"--device", "cuda", "--gpu-mem", "400MiB"}));
  EXPECT_FALSE(says(alone, "exchanging")) << alone.out;
}

// What NCCL takes of a GPU lies within --gpu-mem.
TEST_F(NcclCommand, MemoryOfNcclIsSetAside) {
  constexpr uint64_t kNccl = 150 << 20, kLimit = 400 << 20;
  emulation::set_up({.count = 2, .nccl_bytes = kNccl});
  const Ended ended = run_command(on_two_gpus("out"));
  EXPECT_EQ(ended.code, ExitCode::done) << ended.what;
  EXPECT_LE(emulation::counts().held_most, kLimit);
  EXPECT_GE(emulation::counts().held_most, kNccl);
  emulation::set_up({.count = 2, .nccl_bytes = kLimit});
  EXPECT_EQ(run_command(on_two_gpus("none")).code, ExitCode::infeasible);
  expect_nothing_on_the_gpu();
}

// If NCCL fails to connect the ranks, they exchange through host memory. No rank waits out the minute that
// NCCL is given.
TEST_F(NcclCommand, WhatFailsWhileRanksConnectLeavesHostMemory) {
  ASSERT_EQ(run_command(on_two_gpus("nccl")).code, ExitCode::done);
  emulation::set_up({.count = 2, .nccl_rank_that_cannot_join = 1});
  const double begin = steady_seconds();
  const Ended ended = run_command(on_two_gpus("out"));
  EXPECT_LT(steady_seconds() - begin, 30);
  EXPECT_EQ(ended.code, ExitCode::done) << ended.what;
  EXPECT_TRUE(says(ended,
                   "through host memory (not by NCCL: on rank 1 NCCL's ncclCommInitRankConfig says: system "
                   "error)\n"))
      << ended.out;
  EXPECT_EQ(differences(newest_tensors(directory / "out"), newest_tensors(directory / "nccl")), "");
  expect_nothing_on_the_gpu();
}

// If any call of NCCL fails on any rank, the run ends with exit code 7 and goes on from its checkpoint.
TEST_F(NcclCommand, AnyCallThatFailsEndsAllRanks) {
  const Words kept{"--checkpoint-every", "2", "--lr-schedule", "constant"};
  EXPECT_EQ(run_command(on_two_gpus("whole", kept)).code, ExitCode::done);
  const uint64_t calls = emulation::counts().nccl_calls, warm_up = 2 * 7;
  const Tensors whole = newest_tensors(directory / "whole");
  for (uint64_t at = warm_up; at < calls; at += 1 + calls / 7) {
    SCOPED_TRACE("at call " + std::to_string(at) + " of " + std::to_string(calls));
    emulation::set_up({.seed = static_cast<uint32_t>(at), .count = 2, .nccl_call_that_fails = at});
    const Ended ended = run_command(on_two_gpus("failed", kept + Words{"--resume", "auto"}));
    EXPECT_EQ(ended.code, ExitCode::rank_lost) << ended.what;
    EXPECT_TRUE(ended.what.ends_with("NCCL's exchange says: remote error.")) << ended.what;
    expect_sentences(ended);
    expect_nothing_on_the_gpu();
    set_up_gpus();
    const Ended again = run_command(on_two_gpus("failed", kept + Words{"--resume", "auto"}));
    EXPECT_EQ(again.code, ExitCode::done) << again.what;
    EXPECT_EQ(differences(newest_tensors(directory / "failed"), whole), "");
    std::filesystem::remove_all(directory / "failed");
  }
}

// The GPUs are lost at some piece of work of a step, while collectives wait for each other.
TEST_F(NcclCommand, LostGpusEndAllRanks) {
  EXPECT_EQ(run_command(on_two_gpus("whole")).code, ExitCode::done);
  const uint64_t works = emulation::counts().works;
  for (uint64_t at = works / 5; at < works; at += works / 5) {
    SCOPED_TRACE("at work " + std::to_string(at) + " of " + std::to_string(works));
    emulation::set_up({.seed = static_cast<uint32_t>(at), .count = 2, .work_that_is_lost = at});
    const Ended ended = run_command(on_two_gpus("lost"));
    EXPECT_EQ(ended.code, ExitCode::environment) << ended.what;
    EXPECT_TRUE(ended.what.starts_with("The GPU failed in a step: cudaErrorDevicesUnavailable"))
        << ended.what;
    expect_sentences(ended);
    expect_nothing_on_the_gpu();
    std::filesystem::remove_all(directory / "lost");
  }
}

}  // namespace
}  // namespace sluice
