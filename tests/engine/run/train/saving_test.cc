// How often runs are saved, and when a run that is asked to stop will have ended, against numbers worked out
// by hand.
#include "engine/run/train/saving.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "engine/run/train/stop_forecast.h"

namespace sluice {
namespace {

constexpr Interval kAuto{.is_auto = true};

TEST(Saving, ByTimeUnlessCheckpointsCostTooMuch) {
  EXPECT_EQ(seconds_between(kAuto, 0), 1800);
  EXPECT_EQ(seconds_between(kAuto, 55), 1800);  // 55 of 1855 s are 2.96 %
  EXPECT_DOUBLE_EQ(seconds_between(kAuto, 97), 97 * 97.0 / 3);
  EXPECT_EQ(seconds_between({0, 90}, 97), 90);  // whatever it costs
  EXPECT_EQ(seconds_between({7, 0}, 97), 0);
  EXPECT_EQ(seconds_between({}, 97), 0);
}

TEST(Saving, WhatCheckpointsAddToAStep) {
  const Saving each = saving_of({1, 0}, 38, 94), third = saving_of({0, 100}, 38, 94),
               by_default = saving_of(kAuto, 38, 94), never = saving_of({}, 38, 94);
  EXPECT_EQ(each.mean_step(), 132);
  EXPECT_EQ(each.run_seconds(10), 10 * 132);
  EXPECT_EQ(third.steps, 3);  // 76 s are too few
  EXPECT_EQ(third.run_seconds(7), 7 * 38 + 3 * 94);
  EXPECT_EQ(by_default.steps, 80);  // 3039.3 s
  EXPECT_LT(by_default.mean_step(), 38 / (1 - kSavingPart));
  EXPECT_EQ(never.mean_step(), 38);
  EXPECT_EQ(never.run_seconds(10), 10 * 38 + 94);
}

std::string words(const StopForecast& forecast, double now) {
  char text[256];
  return {text, forecast.describe(now, text)};
}

TEST(StopForecasts, FollowWhatARunTakes) {
  StopForecast forecast({.step = 2, .drain = 1, .save = 4});
  forecast.issued(100, 1);
  EXPECT_EQ(forecast.seconds_left(100.5), 1.5 + 1 + 4);
  EXPECT_EQ(forecast.seconds_left(200), 1 + 4);  // later than predicted
  EXPECT_EQ(words(forecast, 100.5), " That takes about 6.5 s, as predicted.");
  forecast.issued(101, 2);  // a second step, issued after the first
  EXPECT_EQ(forecast.seconds_left(101), 3 + 1 + 4);
  forecast.step_read(106, 6, 1);  // the first step: the mean of it and the prediction, also of its update
  EXPECT_EQ(forecast.seconds_left(107), 3 + 2 + 4);
  EXPECT_EQ(words(forecast, 107),
            " That takes about 9.0 s, as steps of this run took, and 6.0 s for the first checkpoint, as "
            "predicted.");
  EXPECT_EQ(forecast.longest(2), 2 * 4 + 2 + 4);
  forecast.step_read(114, 8, 1);
  EXPECT_EQ(forecast.seconds_left(115), 7 + 4 + 4);
  forecast.drained(122, false);
  EXPECT_DOUBLE_EQ(forecast.seconds_left(122), 8.0 / 3 + 4);  // a validation batch ends
  forecast.saves(130);
  EXPECT_EQ(forecast.seconds_left(131), 3);
  forecast.saved(10);
  EXPECT_EQ(forecast.save_seconds(), 10);
  forecast.drained(135, true);
  EXPECT_DOUBLE_EQ(forecast.seconds_left(135), 8.0 / 3);  // a validation behind the checkpoint
  forecast.issued(140, 1);
  EXPECT_EQ(forecast.seconds_left(140), 8 + 4 + 10);
  EXPECT_EQ(words(forecast, 140), " That takes about 22 s, as steps and checkpoints of this run took.");
}

TEST(StopForecasts, WhatIsDroppedIsTold) {
  StopForecast forecast({.step = 2, .drain = 1, .save = 4});
  forecast.drops_beyond(6.5);
  forecast.issued(100, 1);
  EXPECT_EQ(words(forecast, 100.4), " What is under way is dropped where it can be, to stop within 6.5 s.");
  EXPECT_EQ(words(forecast, 101), " That takes about 6.0 s, as predicted.");
}

TEST(StopForecasts, TheMeanOfTheLastFourSteps) {
  StopForecast forecast({.step = 1, .drain = 0, .save = 0});
  double at = 0;
  for (const double seconds : {100, 2, 4, 6, 8}) forecast.step_read(at += seconds, seconds, 1);
  EXPECT_TRUE(forecast.has_measured());
  EXPECT_EQ(forecast.seconds_left(at), 5);
}

TEST(StopForecasts, NothingIsSaidWithoutARate) {
  StopForecast forecast({.step = 1, .drain = 0, .save = std::numeric_limits<double>::infinity()});
  forecast.issued(0, 1);
  EXPECT_EQ(words(forecast, 0), "");
  forecast.saved(9.96);
  forecast.issued(0, 1);
  EXPECT_EQ(words(forecast, 1), " That takes about 10 s, as predicted.");
}

}  // namespace
}  // namespace sluice
