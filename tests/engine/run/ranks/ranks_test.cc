// Training on several ranks of one process gives the losses of one rank. Also: what ranks send, and how they
// end.
#include "engine/run/ranks/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <regex>

#include "tests/support/fault_queue.h"
#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

TEST_F(RanksTest, LossesAreThoseOfOneRank) {
  const TestResult one = train_on(run_on(1, "one"));
  ASSERT_EQ(one.steps.size(), 10u);
  for (const int64_t ranks : {2, 3, 4}) {
    const TestResult several = train_on(run_on(ranks, "out" + std::to_string(ranks)));
    ASSERT_EQ(several.steps.size(), 10u);
    for (size_t i = 0; i < 10; ++i)
      EXPECT_NEAR(several.steps[i].loss, one.steps[i].loss, 1e-6 * std::abs(one.steps[i].loss))
          << ranks << " ranks, step " << i + 1;
  }
}

// The bytes of ZeRO: a reduce-scatter of all gradients, and an all-gather of all weights. At stage 3, a
// group's weights are gathered before its forward and before its backward. The block sums, which all ranks
// gather, are counted apart.
TEST_F(RanksTest, RanksSendWhatTheStageSays) {
  for (const int64_t ranks : {2, 3})
    for (const int64_t stage : {0, 1, 2, 3}) {
      TestRun run = run_on(ranks, "sent");
      run.options.ranks.zero = stage;
      run.options.batch.steps = 3;
      const TestResult result = train_on(run);
      const Lowering& lowering = result.plan.lowering;
      const auto n = static_cast<uint64_t>(ranks);
      uint64_t whole = 0, gathered = 0, sums = 0;
      for (size_t g = 0; g < lowering.groups.size(); ++g) {
        const uint64_t bytes = lowering.groups[g].shards.back() * sizeof(float);
        const bool forward = result.plan.model.groups[g].name != "ln_f";  // the head has no forward
        whole += bytes;
        gathered += (stage < 3 ? 1 : forward ? 2 : 1) * bytes;
        sums += result.plan.program.buffers[lowering.groups[g].block_sums].bytes() * (n - 1);
      }
      const uint64_t wanted = (whole + gathered) / n * (n - 1) + sums;
      const auto& moved = result.steps.at(1).moved_bytes;  // of a body that also updates
      const auto lane = std::find_if(moved.begin(), moved.end(),
                                     [](const auto& entry) { return entry.first == "collective"; });
      ASSERT_NE(lane, moved.end());
      EXPECT_EQ(lane->second, wanted) << ranks << " ranks, stage " << stage;
      std::filesystem::remove_all(run.options.run.out);
    }
}

TEST_F(RanksTest, UpdatesThatFollowBackward) {
  TestRun one = run_on(1, "one"), two = run_on(2, "two");
  one.options.optimizer.clip = two.options.optimizer.clip = 0;
  const TestResult wanted = train_on(one), found = train_on(two);
  for (size_t i = 0; i < 10; ++i)
    EXPECT_NEAR(found.steps.at(i).loss, wanted.steps.at(i).loss, 1e-6 * std::abs(wanted.steps.at(i).loss));
}

// A run is stopped and resumed on another number of ranks. The order of data stays the same, and losses agree
// within the rounding of sums.
TEST_F(RanksTest, ResumesOnAnotherNumberOfRanks) {
  TestRun all = run_on(1, "whole");
  all.options.optimizer.schedule = Schedule::constant;
  const TestResult whole = train_on(all);
  int64_t step = 0;
  for (const int64_t ranks : {2, 4, 1, 3}) {
    TestRun part = run_on(ranks, "part");
    part.options.optimizer.schedule = Schedule::constant;
    part.options.batch.steps = ranks == 3 ? 10 : step + 2;
    part.options.given = {"steps"};
    part.options.run.resume = "auto";
    const TestResult result = train_on(part);
    ASSERT_EQ(static_cast<int64_t>(result.steps.size()), part.options.batch.steps - step);
    for (const StepMetrics& m : result.steps) {
      const double wanted = whole.steps.at(static_cast<size_t>(m.step - 1)).loss;
      EXPECT_NEAR(m.loss, wanted, 1e-6 * std::abs(wanted)) << ranks << " ranks, step " << m.step;
    }
    step = result.end.step;
  }
  EXPECT_EQ(step, 10);
}

// The end of one rank ends all, with that rank's own error. A resume from the last checkpoint gives the same
// bits.
TEST_F(RanksTest, AFaultOfOneRankEndsAll) {
  TestRun run = run_on(3, "whole");
  run.options.optimizer.schedule = Schedule::constant;
  run.arenas = least_arenas(run, true);
  const TestResult whole = train_on(run);
  const Tensors wanted = newest_tensors(run.options.run.out);
  int ends = 0;
  for (const uint64_t at : {1, 40, 200, 400}) {
    TestRun faulty = run;
    faulty.options.run.out = directory_ / "faulty";
    faulty.options.run.checkpoint_every = {3};
    std::atomic<int> queues{0};
    faulty.wrap_queue = [&](std::unique_ptr<IoQueue> inner) -> std::unique_ptr<IoQueue> {
      if (queues++ != 2) return inner;  // one lane of one rank
      return std::make_unique<FaultQueue>(std::move(inner), Fault{.kind = FaultKind::eio, .at = at});
    };
    bool ended = false;
    try {
      train_on(faulty);
    } catch (const Error& error) {
      ended = true;
      EXPECT_EQ(error.code(), ExitCode::io) << error.what();
    }
    faulty.wrap_queue = nullptr;
    faulty.options.run.resume = "auto";
    ends += ended;
    EXPECT_EQ(ended ? train_on(faulty).end.step : 10, 10);
    EXPECT_EQ(differences(newest_tensors(faulty.options.run.out), wanted), "") << at;
    std::filesystem::remove_all(faulty.options.run.out);
  }
  EXPECT_GE(ends, 2);  // a lane may have fewer requests than the last of these numbers
}

// One rank's trainer stays in a call. The others end when they have waited for too long. Nobody can end the
// stuck thread, so whoever runs the process must end it.
TEST_F(RanksTest, ARankThatHangsEndsAll) {
  std::atomic<bool> released{false};
  std::string told;
  const auto rank = [&](const Ranks& ranks) {
    ranks.set_patience(0.3);
    TestRun run = run_on(3, "hangs");
    run.ranks = ranks;
    run.on_step = [&](const StepMetrics& m) {
      if (ranks.rank() == 1 && m.step == 4) released.wait(false);
    };
    train(run);
  };
  const auto stuck = [&](const std::exception& e) {
    told = e.what();
    released = true;
    released.notify_all();
  };
  EXPECT_THROW(run_in_process(3, rank, stuck), Error);
  EXPECT_TRUE(told.starts_with("Rank 1 has not answered for 1.3 s: rank ")) << told;
  EXPECT_NE(told.find(" waits at step "), std::string::npos) << told;
}

// One rank's lane does not come to a collective. The lanes of the other ranks name the instruction.
TEST_F(RanksTest, ALaneThatWaitsNamesItsInstruction) {
  std::atomic<bool> released{false};
  std::string told;
  std::atomic<int> queues{0};
  const auto rank = [&](const Ranks& ranks) {
    ranks.set_patience(0.3);
    TestRun run = run_on(2, "waits");
    run.arenas = least_arenas(run, true);
    run.ranks = ranks;
    run.wrap_queue = [&](std::unique_ptr<IoQueue> inner) -> std::unique_ptr<IoQueue> {
      if (queues++ != 0) return inner;
      return std::make_unique<HangingQueue>(std::move(inner), 200, released);
    };
    train(run);
  };
  const auto stuck = [&](const std::exception& e) {
    told = e.what();
    released = true;
    released.notify_all();
  };
  EXPECT_THROW(run_in_process(2, rank, stuck), Error);
  EXPECT_TRUE(std::regex_search(told, std::regex("^Rank [01] has not answered for 0.3 s: rank [01] waits at "
                                                 "step [0-9]+ for instruction [0-9]+ of body [a-z]+ on lane "
                                                 "collective \\([a-z]+ of [a-z_.0-9]+\\)\\.$")))
      << told;
}

TEST_F(RanksTest, WhatATrainerThrowsEndsAll) {
  // The error is what was thrown, not what the other three ranks say.
  EXPECT_EQ(told_when_one_throws(run_on(4, "thrown"), train_on), "thrown by the test");
}

}  // namespace
}  // namespace sluice
