// Which rates of `sluice bench` are doubtful, and what it says of them.
#include "tools/bench/rounds.h"

#include <gtest/gtest.h>

#include <thread>

#include "tools/bench/median.h"

namespace sluice {
namespace {

TEST(BenchRounds, AMedianIsComparedWithTheFastest) {
  const Rounds r = rounds_of({0.5, 0.2, 0.4});
  EXPECT_EQ(r.count, 3u);
  EXPECT_EQ(r.fastest, 0.2);
  EXPECT_EQ(r.median, 0.4);
  EXPECT_EQ(r.slowest, 0.5);
  EXPECT_DOUBLE_EQ(r.spread(), 1);
  EXPECT_DOUBLE_EQ(rounds_of({3}).spread(), 0);
}

// One slow round of three does not move the median. Two do.
TEST(BenchRounds, RoundsDisagreeWhenMostAreSlow) {
  EXPECT_FALSE(disagree(rounds_of({1, 1.1, 9})));
  EXPECT_FALSE(disagree(rounds_of({1.19, 1, 1.19})));
  EXPECT_TRUE(disagree(rounds_of({1.21, 1, 1.21})));
  EXPECT_TRUE(disagree(rounds_of({1, 9, 9})));
  EXPECT_FALSE(disagree(rounds_of({1, 9, 9, 1, 1}))) << "repeated when the machine was quiet";
  EXPECT_FALSE(disagree(rounds_of({9, 9, 9}))) << "what slows all rounds alike shows nowhere";
}

TEST(BenchRounds, OnlyDoubtfulRatesAreNamed) {
  const std::vector<RatedRounds> doubts = doubtful({{"copies by 1 thread", rounds_of({1, 1, 1})},
                                                    {"linear in bf16", rounds_of({12e-3, 18e-3, 20e-3})},
                                                    {"gelu in fp32", rounds_of({2, 1, 3})}});
  ASSERT_EQ(doubts.size(), 2u);
  EXPECT_EQ(
      doubts_text(doubts),
      "doubtful: the rounds of 2 rates disagree, although these were timed again. So something else used "
      "the machine meanwhile.\n"
      "  linear in bf16: 3 rounds took 12 ms to 20 ms; their median is 50 % above the fastest\n"
      "  gelu in fp32: 3 rounds took 1 s to 3 s; their median is 100 % above the fastest\n"
      "  Predictions with these rates may be off by as much. Run bench again when nothing else runs.\n");
  EXPECT_EQ(doubts_text({}), "rounds: no median is more than 20 % above the fastest round\n");
}

// Work whose second and third run are slow, and no later one. Sleeps are never shorter than asked for; on a
// busy machine they are longer, so counts have bounds only.
TEST(BenchRounds, WorkIsRepeatedUntilItsRunsAgree) {
  int runs = 0;
  const auto work = [&] {
    ++runs;
    std::this_thread::sleep_for(std::chrono::milliseconds(runs == 3 || runs == 4 ? 200 : 20));
  };
  const Rounds agreed = time_rounds(work, {.seconds_at_most = 60});
  EXPECT_GE(agreed.count, 5u);
  EXPECT_EQ(runs, static_cast<int>(agreed.count) + 1) << "one is not timed";
  EXPECT_FALSE(disagree(agreed));
  EXPECT_GE(agreed.slowest, 0.2);
  runs = 0;
  EXPECT_EQ(time_rounds(work, {}).count, 3u) << "no time for more";
}

}  // namespace
}  // namespace sluice
