#include "tools/report/curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

// A wave with a spike up, a spike down and a hole.
Curve example(int64_t steps) {
  Curve curve;
  for (int64_t s = 1; s <= steps; ++s) curve.add(s, std::sin(static_cast<double>(s) * 1e-3));
  curve.values[static_cast<size_t>(steps / 3)] = 50;
  curve.values[static_cast<size_t>(steps / 2)] = -50;
  for (int64_t i = steps * 6 / 10; i < steps * 7 / 10; ++i)
    curve.values[static_cast<size_t>(i)] = std::nan("");
  return curve;
}

TEST(Curve, FewPointsStay) {
  const Curve curve = example(2000);
  EXPECT_EQ(thinned(curve).steps, curve.steps);
  EXPECT_EQ(thinned(Curve{}).size(), 0u);
  Curve one;
  one.add(7, 1);
  EXPECT_EQ(thinned(one, 1).steps, std::vector<int64_t>{7});
}

TEST(Curve, ManyPointsKeepTheirExtremesAndEnds) {
  for (const int64_t steps : {2001, 99'999, 1'000'000}) {
    const Curve curve = example(steps), thin = thinned(curve);
    EXPECT_LE(thin.size(), 2 * kColumns + 2);
    EXPECT_GT(thin.size(), kColumns);
    EXPECT_EQ(thin.steps.front(), 1);
    EXPECT_EQ(thin.steps.back(), steps);
    EXPECT_EQ(std::ranges::count(thin.values, 50.0), 1);
    EXPECT_EQ(std::ranges::count(thin.values, -50.0), 1);
    EXPECT_TRUE(std::ranges::is_sorted(thin.steps));
    EXPECT_EQ(std::ranges::adjacent_find(thin.steps), thin.steps.end()) << "no step stands there twice";
    for (size_t i = 0; i < thin.size(); ++i) {  // every point is one of the curve
      const double original = curve.values[static_cast<size_t>(thin.steps[i] - 1)];
      EXPECT_TRUE(thin.values[i] == original || (std::isnan(thin.values[i]) && std::isnan(original)));
    }
    // A tenth of the ranges lie in the hole. Each of them has one point, which is NaN.
    EXPECT_NEAR(
        static_cast<double>(std::ranges::count_if(thin.values, [](double v) { return std::isnan(v); })),
        kColumns / 10.0, 2);
  }
}

// Worked out by hand for two ranges of steps, [1, 5.5) and [5.5, 10].
TEST(Curve, KeepsTheLeastAndTheGreatestOfARange) {
  Curve curve;
  const double values[] = {5, 9, 1, 5, 5, 5, 2, 8, 5, 6};
  for (int64_t s = 1; s <= 10; ++s) curve.add(s, values[s - 1]);
  const Curve thin = thinned(curve, 2);
  EXPECT_EQ(thin.steps, (std::vector<int64_t>{1, 2, 3, 7, 8, 10}));
  EXPECT_EQ(thin.values, (std::vector<double>{5, 9, 1, 2, 8, 6}));
}

TEST(Curve, WhatIsNotFiniteIsAHole) {
  Curve curve;
  curve.add(1, INFINITY);
  curve.add(2, -INFINITY);
  curve.add(3, 1);
  EXPECT_TRUE(std::isnan(curve.values[0]) && std::isnan(curve.values[1]));
}

TEST(Curve, IsCutBeforeAStep) {
  Curve curve = example(10);
  curve.cut(11);
  EXPECT_EQ(curve.size(), 10u);
  curve.cut(4);
  EXPECT_EQ(curve.steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(curve.values.size(), 3u);
  curve.cut(0);
  EXPECT_EQ(curve.size(), 0u);
}

TEST(Curve, SmoothingIsAMeanOfWhatCameBefore) {
  Curve curve;
  for (int64_t s = 1; s <= 10; ++s) curve.add(s, s == 2 ? std::nan("") : s == 1 ? 1 : 4);
  const Curve smooth = smoothed(curve);
  EXPECT_EQ(smooth.steps, curve.steps);
  EXPECT_EQ(smooth.values[0], 1) << "not drawn towards 0";
  EXPECT_TRUE(std::isnan(smooth.values[1]));
  const double stays = std::exp(-1.0 / 5);
  EXPECT_DOUBLE_EQ(smooth.values[2], (1 * stays + 4) / (stays + 1));
  EXPECT_DOUBLE_EQ(smooth.values[3], ((1 * stays + 4) * stays + 4) / ((stays + 1) * stays + 1));
}

}  // namespace
}  // namespace sluice
