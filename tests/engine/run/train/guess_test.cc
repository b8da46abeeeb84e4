// Guessed updates: which steps guess, what a guess moves, and when steps stop guessing. That bits stay the
// same is in bits_test.cc and others.
#include <gtest/gtest.h>

#include "cpu_optim/optimizer.h"
#include "engine/run/train/guess_choice.h"
#include "engine/simulate/simulate.h"
#include "engine/verify/verify.h"
#include "tests/support/figures.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/plan_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr int64_t kSteps = 8;

TestRun run_of(const DriveDirectory& directory, double clip, Overlap overlap = Overlap::always) {
  write_bytes(directory / "train.txt", sample_text(4000));
  TestRun run;
  run.options =
      short_run(directory, "gpt2:layers=2,width=32,heads=2,vocab=256,context=32", directory / "train.txt");
  run.options.batch.steps = kSteps;
  run.options.optimizer.clip = clip;
  run.options.numbers.precision = DType::bf16;
  run.options.memory.overlap = overlap;
  run.options.memory.nvme_directories.clear();
  return run;
}

// "p" plain, "g" guessed, "r" repaired, by step.
std::string orders_of(const TestRun& run) {
  std::string orders;
  for (const StepMetrics& m : train(run).steps) orders += "pgr"[static_cast<int>(m.order)];
  return orders;
}

// The first step has nothing to guess from, the second no guess to rely on.
TEST(Guesses, AStepIsRepairedIfTheOneBeforeWasClipped) {
  const DriveDirectory directory;
  EXPECT_EQ(orders_of(run_of(directory, 1e-6)), "prrrrrrr");
  EXPECT_EQ(orders_of(run_of(directory, 1e6)), "prgggggg");
  std::vector<double> norms;
  for (const StepMetrics& m : train(run_of(directory, 1e6)).steps) norms.push_back(m.grad_norm);
  std::vector<double> sorted(norms.begin() + 1, norms.end() - 1);
  std::sort(sorted.begin(), sorted.end());
  const TestResult half = train(run_of(directory, sorted[sorted.size() / 2]));
  int repaired = 0, guessed = 0;
  for (size_t k = 2; k < half.steps.size(); ++k) {
    const bool clipped = half.steps[k - 1].grad_norm + 1e-6 > sorted[sorted.size() / 2];
    EXPECT_EQ(half.steps[k].order, clipped ? StepOrder::repaired : StepOrder::guessed) << k;
    ++(clipped ? repaired : guessed);
  }
  EXPECT_GT(repaired, 0);
  EXPECT_GT(guessed, 0);
}

TEST(Guesses, OnlyWhereThereIsSomethingToGuess) {
  const DriveDirectory directory;
  EXPECT_EQ(orders_of(run_of(directory, 1, Overlap::never)), "pppppppp");
  EXPECT_EQ(orders_of(run_of(directory, 0)), "pppppppp") << "without clipping, updates wait for nothing";
  TestRun wide = run_of(directory, 1);
  wide.options.numbers.precision = DType::f32;
  EXPECT_EQ(orders_of(wide), "pppppppp") << "the weights are the master weights";
  TestRun scaled = run_of(directory, 0);
  scaled.options.numbers.precision = DType::f16;
  EXPECT_EQ(orders_of(scaled), "prgggggg") << "a step may be skipped";
}

// Validations and checkpoints read only committed updates.
TEST(Guesses, EndWhereTheStateIsRead) {
  const DriveDirectory directory;
  TestRun run = run_of(directory, 1e6);
  run.options.run.checkpoint_every = {3};
  EXPECT_EQ(orders_of(run), "prgprgpr");
}

TEST(Guesses, StopWhereTheyAreWrongTooOften) {
  GuessChoice choice(Overlap::automatic, 0.25);  // 8 of 32
  EXPECT_TRUE(choice.guesses());
  for (int k = 0; k < 8; ++k) choice.add(false);
  EXPECT_TRUE(choice.guesses());
  choice.add(false);
  EXPECT_FALSE(choice.guesses());
  for (int k = 0; k < 28; ++k) choice.add(true);  // five of the last 32 were wrong
  EXPECT_FALSE(choice.guesses()) << "half of the share is four";
  for (int k = 0; k < 2; ++k) choice.add(true);
  EXPECT_TRUE(choice.guesses());
  GuessChoice never_pays(Overlap::automatic, 0), always_pays(Overlap::automatic, 1);
  GuessChoice always(Overlap::always, 0), never(Overlap::never, 1);
  for (int k = 0; k < 40; ++k)
    for (GuessChoice* c : {&never_pays, &always_pays, &always, &never}) c->add(false);
  EXPECT_FALSE(never_pays.guesses());
  EXPECT_TRUE(always_pays.guesses());
  EXPECT_TRUE(always.guesses());
  EXPECT_FALSE(never.guesses());
}

TEST(Guesses, BreakEvenIsWhereBothOrdersTakeEquallyLong) {
  EXPECT_EQ((StepOrders{2, 1, 5}.break_even()), 0.25);
  EXPECT_EQ((StepOrders{2, 1, 2}.break_even()), 1) << "as fast where all are wrong";
  EXPECT_EQ((StepOrders{2, 3, 5}.break_even()), 0);
  EXPECT_EQ((StepOrders{2, std::nullopt, std::nullopt}.break_even()), 1);
}

// With its state on the drive and all else in memory, a step reads and writes the state once. A wrong guess
// costs one more read, and no write.
TEST(Guesses, AWrongOneReadsTheStateOnceMore) {
  using namespace testing;
  Case c;
  const auto config = config_from_name("llama:layers=4,width=64,heads=4,vocab=256,context=32");
  c.model = build_model(config, DType::bf16, 1, 8);
  c.options.batch = 2;
  c.options.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  c.options.workspace_bytes = no_workspace;
  c.options.updated_in_backward.assign(c.model.groups.size(), true);
  c.options.updated_in_backward[0] = false;
  lower_case(c, machine_of(Tiers::host_nvme));
  for (const Buffer& b : c.program.buffers)
    c.arrangement.homes.push_back(b.kind == BufferClass::state ? TierId{1} : TierId{0});
  c.arrangement.leads.assign(2, 16);
  c.arrangement.keep = false;  // as if there were no room for a state until its visit
  ASSERT_FALSE(assemble(c.program, c.arrangement));
  EXPECT_TRUE(verify(c.program).empty());
  uint64_t all = 0, guessed = 0;
  for (size_t g = 0; g < c.model.groups.size(); ++g)
    for (const BufferId state : c.lowering.groups[g].state) {
      all += c.program.buffers[state].bytes();
      if (c.options.updated_in_backward[g]) guessed += c.program.buffers[state].bytes();
    }
  const auto moved = [&](BodyId body, TierId from) {
    uint64_t bytes = 0;
    for (const Instruction& in : c.program.bodies[body].instructions)
      if (in.task == kNoTask && in.places[0].tier == from)
        bytes += operand_bytes(c.program.buffers[in.operands[0].buffer], in.operands[0]);
    return bytes;
  };
  const BodyIds& bodies = c.lowering.bodies();
  for (const BodyId body : {*bodies.step, *bodies.guess, *bodies.repair}) {
    const uint64_t again = body == *bodies.repair ? guessed : 0;
    EXPECT_EQ(moved(body, 1), all + again) << c.program.bodies[body].name;
    EXPECT_EQ(moved(body, 0), all) << c.program.bodies[body].name;
    EXPECT_EQ(bytes_to_files(c.program, std::span(&body, 1)), all) << c.program.bodies[body].name;
  }
  figures.holds("bytes that a guess, a repair and a plain step move between drive and memory: the formula's",
                moved(*bodies.repair, 1) == all + guessed && moved(*bodies.guess, 1) == all);
}

}  // namespace
}  // namespace sluice
