// Several ranks of one process train to the same bits with any number of waves, and run the same bodies.
#include <gtest/gtest.h>

#include "tests/support/ranks_support.h"
#include "tests/support/sanitized.h"

namespace sluice {
namespace {

TEST_F(RanksTest, BitsDoNotDependOnWaves) {
  for (const double clip : testing::one_if_sanitized({1.0, 0.0}))
    for (const int64_t stage : {0, 2, 3}) {
      TestRun run = run_on(2, "one wave");
      run.options.numbers.precision = DType::bf16;
      run.options.optimizer.clip = clip;
      run.options.memory.overlap = Overlap::never;
      run.options.ranks.zero = stage;
      run.options.batch.steps = 4;
      run.options.batch.waves = 1;
      run.options.data.validation = {directory_ / "text.txt"};
      run.options.data.val_every = 3;
      run.options.data.val_batches = 4;
      const TestResult wanted = train_on(run);
      const std::vector<float> state = newest_masters(run.options.run.out);
      for (const int64_t waves : {2, 3, 6}) {
        TestRun other = run;
        other.options.batch.waves = waves;
        other.options.memory.overlap = waves == 3 ? Overlap::never : Overlap::always;
        other.options.run.out = directory_ / "waves";
        other.arenas = least_arenas(other, waves == 6);
        const TestResult found = train_on(other);
        EXPECT_EQ(found.plan.lowering.waves, waves);
        EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << stage << ", waves " << waves;
        EXPECT_EQ(fixed_bits(found.validations), fixed_bits(wanted.validations)) << stage;
        EXPECT_EQ(newest_masters(other.options.run.out), state) << stage << ", waves " << waves;
        std::filesystem::remove_all(other.options.run.out);
      }
      std::filesystem::remove_all(run.options.run.out);
    }
}

// By its own budgets, a rank could choose a step with other bodies and collectives. All ranks take the first
// rank's choice.
TEST_F(RanksTest, RanksOfOtherBudgetsRunTheSameBodies) {
  TestRun run = run_on(2, "alike");
  run.options.numbers.precision = DType::bf16;
  run.options.batch.batch = 32;
  run.options.batch.steps = 4;
  const TestResult wanted = train_on(run);
  const std::vector<float> state = newest_masters(run.options.run.out);
  TestRun small = run;
  small.arenas = least_arenas(run, false);
  small.arenas.host += small.arenas.host / 4;
  const StepShape of_small = std::get<Plan>(plan_of(small)).shape;
  EXPECT_NE(of_small, std::get<Plan>(plan_of(run)).shape) << "otherwise this test shows nothing";
  for (const int first : {0, 1}) {
    run.options.run.out = small.options.run.out = directory_ / "other";
    std::vector<StepShape> shapes(2);
    run_in_process(
        2,
        [&](const Ranks& ranks) {
          TestRun mine = ranks.rank() == first ? small : run;
          mine.ranks = ranks;
          const TestResult found = train(mine);
          EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << ranks.rank();
          shapes[static_cast<size_t>(ranks.rank())] = found.plan.shape;
        },
        [](const std::exception& e) { ADD_FAILURE() << "a rank is stuck after: " << e.what(); });
    EXPECT_EQ(shapes[0], shapes[1]);
    if (first == 0) {
      EXPECT_EQ(shapes[0], of_small);
    }
    EXPECT_EQ(newest_masters(run.options.run.out), state);
    std::filesystem::remove_all(run.options.run.out);
  }
}

}  // namespace
}  // namespace sluice
