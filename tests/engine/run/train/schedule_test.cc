// Learning-rate schedules against numbers worked out by hand.
#include "engine/run/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

OptimizerOptions options_with(Schedule schedule, int64_t warmup) {
  OptimizerOptions options;
  options.schedule = schedule;
  options.learning_rate = 8;
  options.min_learning_rate = 2;
  options.warmup.steps = warmup;
  return options;
}

TEST(Schedule, WarmupRisesByEqualStepsToTheTop) {
  for (const Schedule schedule : {Schedule::constant, Schedule::cosine, Schedule::linear}) {
    const OptimizerOptions options = options_with(schedule, 4);
    EXPECT_EQ(learning_rate(options, 0, 12), 2);
    EXPECT_EQ(learning_rate(options, 1, 12), 4);
    EXPECT_EQ(learning_rate(options, 2, 12), 6);
    EXPECT_EQ(learning_rate(options, 3, 12), 8);
    EXPECT_EQ(learning_rate(options, 4, 12), 8);  // the first step after the warm-up is still at the top
  }
}

TEST(Schedule, ConstantStaysAtTheTop) {
  const OptimizerOptions options = options_with(Schedule::constant, 0);
  for (const int64_t step : {0, 1, 11, 12, 100}) EXPECT_EQ(learning_rate(options, step, 12), 8);
}

// With 4 steps of warm-up and 12 in all: 2 + 3 * (1 + cos(pi * (step - 4) / 8)). The cosines of multiples of
// pi / 4 are exact to an ulp or so of 1, hence the tolerance of 1e-14.
TEST(Schedule, CosineFallsToTheFloor) {
  const OptimizerOptions options = options_with(Schedule::cosine, 4);
  EXPECT_NEAR(learning_rate(options, 6, 12), 5 + 3 * std::sqrt(0.5), 1e-14);   // pi/4
  EXPECT_NEAR(learning_rate(options, 8, 12), 5, 1e-14);                        // pi/2
  EXPECT_NEAR(learning_rate(options, 10, 12), 5 - 3 * std::sqrt(0.5), 1e-14);  // 3 pi/4
  EXPECT_EQ(learning_rate(options, 12, 12), 2);
  EXPECT_EQ(learning_rate(options, 1000, 12), 2);
}

TEST(Schedule, LinearFallsByEqualSteps) {
  const OptimizerOptions options = options_with(Schedule::linear, 0);
  EXPECT_EQ(learning_rate(options, 0, 4), 8);
  EXPECT_EQ(learning_rate(options, 1, 4), 6.5);
  EXPECT_EQ(learning_rate(options, 2, 4), 5);
  EXPECT_EQ(learning_rate(options, 3, 4), 3.5);
  EXPECT_EQ(learning_rate(options, 4, 4), 2);
}

TEST(Schedule, FloorIsATenthUnlessGiven) {
  OptimizerOptions options;
  EXPECT_EQ(minimum_learning_rate(options), 3e-4 / 10);
  options.schedule = Schedule::linear;
  EXPECT_EQ(learning_rate(options, 10, 10), 3e-4 / 10);
  options.min_learning_rate = 0;
  EXPECT_EQ(minimum_learning_rate(options), 0);
  EXPECT_EQ(learning_rate(options, 10, 10), 0);
}

TEST(Schedule, WarmupLongerThanTheRunNeverDividesByZero) {
  for (const Schedule schedule : {Schedule::cosine, Schedule::linear}) {
    const OptimizerOptions options = options_with(schedule, 16);
    EXPECT_EQ(learning_rate(options, 7, 8), 4);    // 8 * 8 / 16
    EXPECT_EQ(learning_rate(options, 16, 16), 2);  // warm-up ends where the run does
  }
}

}  // namespace
}  // namespace sluice
