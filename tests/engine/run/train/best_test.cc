// --keep-best: the checkpoint with the lowest validation loss is written when it is validated, and stays. On
// one rank and on several, through ends without a stop, and where its drive is away.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

// Letters that no training data have. The better the model knows its data, the less it expects these letters,
// so the first validation is the best one.
std::string noise(uint64_t seed) {
  std::string text;
  for (uint64_t state = seed; text.size() < 2000;) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    text += static_cast<char>('A' + (state >> 40) % 26);
  }
  return text;
}

class Best : public RanksTest {
 protected:
  // A run of ten steps, validated after every second step, whose validation loss gets worse or better.
  TestRun validated_run(int64_t ranks, const std::string& out, bool gets_worse) const {
    TestRun run = run_on(ranks, out);
    write_bytes(directory_ / "worse.txt", noise(1));
    write_bytes(directory_ / "better.txt", sample_text(2000, 9));
    run.options.data.validation = {directory_ / (gets_worse ? "worse.txt" : "better.txt")};
    run.options.data.val_every = 2;
    run.options.data.val_batches = 2;
    run.options.run.keep_best = true;
    run.options.run.keep = 1;
    return run;
  }
  static std::vector<int64_t> steps_of(const TestRun& run) {
    std::vector<int64_t> steps;
    for (const CheckpointEntry& entry : list_checkpoints(checkpoints_directory(run.options.run.out)))
      steps.push_back(entry.step);
    return steps;
  }
};

TEST_F(Best, StaysBesideTheNewest) {
  for (const int64_t ranks : {1, 2}) {
    const TestRun run = validated_run(ranks, "run" + std::to_string(ranks), true);
    const TestResult result = train_on(run);
    ASSERT_EQ(result.validations.size(), 5u);
    for (size_t i = 1; i < 5; ++i)
      ASSERT_GT(result.validations[i].val_loss, result.validations[0].val_loss) << i;
    EXPECT_EQ(result.checkpoints, 2u);
    EXPECT_EQ(steps_of(run), (std::vector<int64_t>{10, 2}));
    const std::optional<BestCheckpoint> best = best_checkpoint(run.options.run.out);
    ASSERT_TRUE(best);
    EXPECT_EQ(best->step, 2);
    EXPECT_EQ(best->validation.loss, result.validations[0].val_loss);
    EXPECT_EQ(best->validation.tokens, 2 * 12 * 32);
    // Without the option, only the newest one stays. Its manifest has the loss, too.
    TestRun other = validated_run(ranks, "other" + std::to_string(ranks), true);
    other.options.run.keep_best = false;
    EXPECT_EQ(train_on(other).checkpoints, 1u);
    EXPECT_EQ(best_checkpoint(other.options.run.out)->validation.loss, result.validations[4].val_loss);
    EXPECT_EQ(differences(newest_tensors(other.options.run.out), newest_tensors(run.options.run.out)), "");
  }
}

TEST_F(Best, IsWrittenWheneverTheLossIsLowerThanBefore) {
  for (const int64_t ranks : {1, 2}) {
    TestRun run = validated_run(ranks, "run" + std::to_string(ranks), false);
    run.options.run.checkpoint_every = {5};
    const TestResult result = train_on(run);
    ASSERT_EQ(result.validations.size(), 5u);
    for (size_t i = 1; i < 5; ++i)
      ASSERT_LT(result.validations[i].val_loss, result.validations[i - 1].val_loss) << i;
    EXPECT_EQ(result.checkpoints, 6u);  // after 2, 4, 5, 6, 8 and 10
    EXPECT_EQ(steps_of(run), std::vector<int64_t>{10});
    EXPECT_EQ(best_checkpoint(run.options.run.out)->step, 10);
  }
}

// The losses must agree so that all ranks find the same checkpoint to be the best.
TEST_F(Best, RanksHaveTheSameValidationLosses) {
  const TestRun run = validated_run(3, "run", false);
  std::vector<TestResult> of_rank(3);
  run_in_process(
      3,
      [&](const Ranks& ranks) {
        TestRun mine = run;
        mine.ranks = ranks;
        of_rank[static_cast<size_t>(ranks.rank())] = train(mine);
      },
      [](const std::exception& e) { ADD_FAILURE() << "a rank is stuck after: " << e.what(); });
  ASSERT_EQ(of_rank[0].validations.size(), 5u);
  for (const TestResult& result : of_rank)
    EXPECT_EQ(fixed_bits(result.validations), fixed_bits(of_rank[0].validations));
}

// A run ends without a stop after every step. When it goes on, it reads from the drive which checkpoint was
// the best.
TEST_F(Best, IsKnownAfterAnyEnd) {
  const TestRun whole = validated_run(1, "whole", true);
  const TestResult expected = train_on(whole);
  TestRun run = validated_run(1, "run", true);
  run.options.run.resume = "auto";
  run.options.run.checkpoint_every = {3};
  for (int64_t step = 1; step <= 10; ++step) {
    run.on_step = [&](const StepMetrics& m) {
      if (m.step == step) throw Error(ExitCode::rank_lost, "The test ends the run here.", "Resume.");
    };
    EXPECT_THROW(train_on(run), Error);
  }
  run.on_step = nullptr;
  train_on(run);
  EXPECT_EQ(steps_of(run), (std::vector<int64_t>{10, 2}));
  EXPECT_EQ(best_checkpoint(run.options.run.out)->validation.loss, expected.validations[0].val_loss);
  EXPECT_EQ(differences(newest_tensors(whole.options.run.out), newest_tensors(run.options.run.out)), "");
}

// Validation losses over other tokens are not compared with earlier ones.
TEST_F(Best, OtherDataBeginAnew) {
  TestRun run = validated_run(1, "run", true);
  train_on(run);
  run.options.run.resume = "auto";
  run.options.given = {"steps"};
  run.options.batch.steps = 12;
  train_on(run);
  EXPECT_EQ(steps_of(run), (std::vector<int64_t>{12, 2}));
  write_bytes(directory_ / "other.txt", noise(2));
  run.options.data.validation = {directory_ / "other.txt"};
  run.options.batch.steps = 15;  // validated after 14 and 15
  train_on(run);
  EXPECT_EQ(best_checkpoint(run.options.run.out)->step, 14);
  EXPECT_EQ(steps_of(run), (std::vector<int64_t>{15, 14}));
}

// A run that goes on without validation keeps its best checkpoint.
TEST_F(Best, StaysWhereNoMoreIsValidated) {
  TestRun run = validated_run(1, "run", true);
  train_on(run);
  run.options.run.resume = "auto";
  run.options.given = {"steps"};
  run.options.data.validation.clear();
  run.options.run.checkpoint_every = {1};
  run.options.batch.steps = 12;
  train_on(run);
  EXPECT_EQ(steps_of(run), (std::vector<int64_t>{12, 2}));
}

TEST_F(Best, IsLeftOutWhereItsDriveIsAway) {
  namespace fs = std::filesystem;
  for (const int64_t ranks : {1, 2}) {
    TestRun run = validated_run(ranks, "run", false);
    const std::string out = run.options.run.out, link = out + "/checkpoints", drive = directory_ / "drive";
    fs::create_directories(out);
    fs::create_directory(drive);
    fs::create_directory_symlink(drive, link);
    std::atomic<int> told{0};
    run.on_trouble = [&](const std::string& sentences) {
      EXPECT_EQ(sentences, "No room for the checkpoint after step 4, the best one so far: " + link +
                               " is a link to a place that is not there. The run goes on without it. Free "
                               "some space.");
      ++told;
    };
    std::atomic<bool> away{false}, back{false};  // each rank is told of each step
    run.on_step = [&](const StepMetrics& m) {
      if (m.step == 3 && !away.exchange(true)) fs::rename(drive, drive + ".away");
      if (m.step == 5 && !back.exchange(true)) fs::rename(drive + ".away", drive);
    };
    const TestResult result = train_on(run);
    EXPECT_EQ(told, 1);
    EXPECT_EQ(result.checkpoints, 4u);  // after 2, 6, 8 and 10
    EXPECT_EQ(steps_of(run), std::vector<int64_t>{10});
    fs::remove_all(out);
    fs::remove_all(drive);
  }
}

}  // namespace
}  // namespace sluice
