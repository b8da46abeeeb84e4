// Several ranks of one process train to the same bits under any budgets and stages, and wherever ranks
// exchange bytes.
#include <gtest/gtest.h>

#include "tests/support/ranks_support.h"
#include "tests/support/sanitized.h"

namespace sluice {
namespace {

using testing::one_if_sanitized;

// Budgets and executors change only where bytes are and when they move.
TEST_F(RanksTest, BitsDoNotDependOnBudgetsAndExecutors) {
  for (const DType precision : one_if_sanitized({DType::bf16, DType::f32, DType::f16})) {
    TestRun run = run_on(3, "bits");
    run.options.numbers.precision = precision;
    run.options.batch.steps = 4;
    validate(run);
    const TestResult wanted = train_on(run);
    const Tensors state = newest_tensors(run.options.run.out);
    const auto expect_same = [&](TestRun other, const std::string& name) {
      other.options.run.out = directory_ / "bits." + name;
      const TestResult found = train_on(other);
      EXPECT_EQ(fixed_bits(found.steps), fixed_bits(wanted.steps)) << name;
      EXPECT_EQ(fixed_bits(found.validations), fixed_bits(wanted.validations)) << name;
      EXPECT_EQ(differences(newest_tensors(other.options.run.out), state), "") << name;
      std::filesystem::remove_all(other.options.run.out);
    };
    with_other_budgets_and_executors(run, expect_same);
    std::filesystem::remove_all(run.options.run.out);
  }
}

// Ranks may exchange in device memory, which is a part of host memory in this test.
TEST_F(RanksTest, BitsDoNotDependOnWhereRanksMeet) {
  for (const DType precision : one_if_sanitized({DType::bf16, DType::f32}))
    for (const int64_t stage : {3, 1, 0}) {
      TestRun run = run_on(3, "host");
      run.options.numbers.precision = precision;
      run.options.ranks.zero = stage;
      run.options.batch.steps = 4;
      const TestResult wanted = train_on(run);
      run.ranks_meet_in_device = true;
      run.options.run.out = directory_ / "device";
      run.arenas = least_arenas(run, true);
      EXPECT_EQ(fixed_bits(train_on(run).steps), fixed_bits(wanted.steps)) << stage;
      EXPECT_EQ(newest_masters(run.options.run.out), newest_masters(directory_ / "host")) << stage;
      for (const char* out : {"host", "device"}) std::filesystem::remove_all(directory_ / out);
    }
}

TEST_F(RanksTest, BitsDoNotDependOnTheStage) {
  for (const DType precision : one_if_sanitized({DType::bf16, DType::f32}))
    for (const double clip : one_if_sanitized({1.0, 0.0})) {
      TestRun run = run_on(2, "stage3");
      run.options.numbers.precision = precision;
      run.options.optimizer.clip = clip;
      run.options.memory.overlap = Overlap::never;
      const TestResult wanted = train_on(run);
      const std::vector<float> state = newest_masters(run.options.run.out);
      for (const int64_t stage : {0, 1, 2, 3}) {
        TestRun other = run;
        other.options.ranks.zero = stage;
        other.options.memory.overlap = Overlap::always;
        other.options.run.out = directory_ / "stage";
        EXPECT_EQ(fixed_bits(train_on(other).steps), fixed_bits(wanted.steps)) << stage;
        EXPECT_EQ(newest_masters(other.options.run.out), state) << stage;
        other.options.run.out = directory_ / "least";
        other.arenas = least_arenas(other, true);
        EXPECT_EQ(fixed_bits(train_on(other).steps), fixed_bits(wanted.steps)) << stage;
        for (const char* out : {"stage", "least"}) std::filesystem::remove_all(directory_ / out);
      }
      std::filesystem::remove_all(run.options.run.out);
    }
}

}  // namespace
}  // namespace sluice
