// What a run says that a kill would lose.
#include "tools/train/kill_loss.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr Interval kAuto{.is_auto = true};

std::string words(const Interval& every, double step, double checkpoint, int64_t steps,
                  const std::string& no_room = "") {
  return KillLoss{.every = every, .save_seconds = checkpoint, .steps = steps, .no_room = no_room}.words(
      step, "as predicted");
}

TEST(KillLossTest, EveryKindOfInterval) {
  EXPECT_EQ(words(kAuto, 10, 50, 1000),
            "a kill loses up to 31m00s, as predicted: a checkpoint is written every 30m00s, in 50 s");
  EXPECT_EQ(words({100, 0}, 10, 50, 1000),
            "a kill loses up to 17m40s, as predicted: a checkpoint is written every 100 steps, in 50 s");
  EXPECT_EQ(words({1, 0}, 10, 50, 1000),
            "a kill loses up to 1m10s, as predicted: a checkpoint is written every step, in 50 s");
  EXPECT_EQ(words({0, 25}, 10, 50, 1000),
            "a kill loses up to 1m30s, as predicted: a checkpoint is written every 25s, in 50 s");
}

TEST(KillLossTest, WhatIsSavedAtTheEndOnly) {
  const std::string all = "a kill loses all since the start, up to 16m40s, as predicted: ";
  EXPECT_EQ(words(kAuto, 10, 50, 100), all + "the run is saved at its end and at a stop");
  EXPECT_EQ(words({}, 10, 50, 100), all + "--checkpoint-every 0 saves the run only at its end and at a stop");
  EXPECT_EQ(words(kAuto, 10, 50, 1000, "the drive is full"),
            "a kill loses all since the start, up to 2h46m, as predicted: the drive is full");
}

TEST(KillLossTest, SlowerStepsLoseMore) {
  const KillLoss all{.every = kAuto, .save_seconds = 50, .validated = 1.5, .steps = 100};
  EXPECT_EQ(all.seconds(2), 300);
  EXPECT_EQ(all.time(1e-6), "1s");
  const KillLoss by_steps{.every = {100, 0}, .save_seconds = 50, .steps = 1000};
  EXPECT_EQ(by_steps.seconds(10), 100 * 10 + 10 + 50);
  EXPECT_EQ(by_steps.seconds(20), 100 * 20 + 20 + 50);
}

}  // namespace
}  // namespace sluice
