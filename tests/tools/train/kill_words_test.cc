// What a run says that a kill would lose.
#include "tools/train/kill_words.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr Interval kAuto{.is_auto = true};

std::string words(const Interval& every, double step, double checkpoint, int64_t steps,
                  const std::string& no_room = "") {
  return kill_words(every, saving_of(every, step, checkpoint), steps, no_room);
}

TEST(KillWords, EveryKindOfInterval) {
  EXPECT_EQ(words(kAuto, 10, 50, 1000),
            "a kill loses at most 31m00s as predicted: a checkpoint is written every 30m00s, in 50 s");
  EXPECT_EQ(words({100, 0}, 10, 50, 1000),
            "a kill loses at most 17m40s as predicted: a checkpoint is written every 100 steps, in 50 s");
  EXPECT_EQ(words({1, 0}, 10, 50, 1000),
            "a kill loses at most 1m10s as predicted: a checkpoint is written every step, in 50 s");
  EXPECT_EQ(words({0, 25}, 10, 50, 1000),
            "a kill loses at most 1m30s as predicted: a checkpoint is written every 25s, in 50 s");
}

TEST(KillWords, WhatIsSavedAtTheEndOnly) {
  const std::string all = "a kill loses all since the start, at most 16m40s as predicted: ";
  EXPECT_EQ(words(kAuto, 10, 50, 100), all + "the run is saved at its end and at a stop");
  EXPECT_EQ(words({}, 10, 50, 100), all + "--checkpoint-every 0 saves the run only at its end and at a stop");
  EXPECT_EQ(words(kAuto, 10, 50, 1000, "the drive is full"),
            "a kill loses all since the start, at most 2h46m as predicted: the drive is full");
}

}  // namespace
}  // namespace sluice
