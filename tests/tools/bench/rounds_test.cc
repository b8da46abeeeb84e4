// Which rates of `sluice bench` are doubtful, and what it says of them.
#include "tools/bench/rounds.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tools/bench/median.h"

namespace sluice {
namespace {

TEST(BenchRounds, AMedianIsComparedWithTheFastestEighth) {
  const Rounds r = rounds_of({0.5, 0.2, 0.4});
  EXPECT_EQ(r.count, 3u);
  EXPECT_EQ(r.fastest, 0.2);
  EXPECT_EQ(r.eighth, 0.2);
  EXPECT_EQ(r.median, 0.4);
  EXPECT_EQ(r.slowest, 0.5);
  EXPECT_DOUBLE_EQ(r.spread(), 1);
  EXPECT_DOUBLE_EQ(rounds_of({3}).spread(), 0);
  EXPECT_EQ(rounds_of({8, 7, 6, 5, 4, 3, 2, 1}).eighth, 2);
  EXPECT_EQ(rounds_of({8, 7, 6, 5, 4, 3, 2, 1}).median, 5);
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

// A rate is doubtful if one of seven rounds was fast. If one of eight was, that counts as chance.
TEST(BenchRounds, OneFastRoundOfManyIsNoDoubt) {
  EXPECT_FALSE(disagree(rounds_of({1, 2, 2, 2, 2, 2, 2, 2})));
  EXPECT_TRUE(disagree(rounds_of({1, 2, 2, 2, 2, 2, 2})));
}

TEST(BenchRounds, OnlyDoubtfulRatesAreNamed) {
  const std::vector<RatedRounds> doubts = doubtful({{"copies by 1 thread", rounds_of({1, 1, 1})},
                                                    {"linear in bf16", rounds_of({12e-3, 18e-3, 20e-3})},
                                                    {"gelu in fp32", rounds_of({2, 1, 3})}});
  ASSERT_EQ(doubts.size(), 2u);
  EXPECT_EQ(
      doubts_text(doubts),
      "doubtful: the rounds of 2 rates disagree, although these were timed again. Something else may "
      "have used the machine meanwhile.\n"
      "  linear in bf16: 3 rounds took 12 ms to 20 ms; their median is 50 % above the fastest eighth\n"
      "  gelu in fp32: 3 rounds took 1 s to 3 s; their median is 100 % above the fastest eighth\n"
      "  Predictions with these rates may be off by as much. Run bench again when nothing else runs.\n");
  EXPECT_EQ(doubts_text({}), "rounds: no median is more than 20 % above the fastest eighth\n");
}

TEST(BenchRounds, WorkIsRepeatedUntilItsRoundsAgree) {
  const Repeats three{}, long_enough{.seconds_at_least = 4}, bounded{.seconds_at_most = 20};
  const auto enough = [](const std::vector<double>& seconds, const Repeats& repeats) {
    return sluice::enough(seconds, std::accumulate(seconds.begin(), seconds.end(), 0.0), repeats);
  };
  EXPECT_FALSE(enough({}, three));
  EXPECT_FALSE(enough({1, 1}, three));
  EXPECT_TRUE(enough({1, 1, 1}, three));
  EXPECT_FALSE(enough({1, 1, 1}, long_enough));
  EXPECT_TRUE(enough({1, 1, 1, 1}, long_enough));
  EXPECT_TRUE(enough({1, 5, 5}, three)) << "no time for more";
  EXPECT_FALSE(enough({1, 5, 5}, bounded));
  EXPECT_FALSE(enough({1, 5, 5, 1}, bounded));
  EXPECT_TRUE(enough({1, 5, 5, 1, 1}, bounded)) << "they agree";
  EXPECT_TRUE(enough({1, 5, 5, 5, 5}, bounded)) << "21 s";
  EXPECT_TRUE(enough({5, 5, 5}, bounded)) << "they agree at once";
}

TEST(BenchRounds, AFirstRunIsNotTimed) {
  int runs = 0;
  EXPECT_EQ(time_rounds([&] { ++runs; }, {.rounds_at_least = 7}).count, 7u);
  EXPECT_EQ(runs, 8);
}

}  // namespace
}  // namespace sluice
