// How many threads update parameters.
#include <gtest/gtest.h>

#include "engine/run/execute/session.h"

namespace sluice {
namespace {

TEST(OptimizerThreads, LeaveTwoOfEightProcessorsOrMore) {
  EXPECT_EQ(optimizer_threads(8, 8), 6);
  EXPECT_EQ(optimizer_threads(16, 16), 14);
  EXPECT_EQ(optimizer_threads(15, 16), 14);
  EXPECT_EQ(optimizer_threads(32, 16), 14);
}

TEST(OptimizerThreads, AreAsManyAsAskedForWhereProcessorsAreFewOrFreeOrNotKnown) {
  EXPECT_EQ(optimizer_threads(1, 1), 1);
  EXPECT_EQ(optimizer_threads(2, 2), 2);
  EXPECT_EQ(optimizer_threads(7, 7), 7);
  EXPECT_EQ(optimizer_threads(16, 7), 16);
  EXPECT_EQ(optimizer_threads(6, 8), 6);
  EXPECT_EQ(optimizer_threads(16, 0), 16);  // the system does not say
}

}  // namespace
}  // namespace sluice
