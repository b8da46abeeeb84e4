// The mapping of the nvme tier's stripes to files: patterns worked out by hand, and what holds for any drive
// shares.
#include "offload/stripes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace sluice {
namespace {

using Parts = std::vector<double>;

std::vector<uint32_t> pattern(const Parts& parts) {
  const Stripes stripes(parts);
  return {stripes.pattern().begin(), stripes.pattern().end()};
}

TEST(Stripes, OneFileHasAll) {
  const Stripes stripes(Parts{1e9});
  EXPECT_EQ(stripes.locate(12345).file, 0u);
  EXPECT_EQ(stripes.locate(12345).index, 12345u);
  EXPECT_EQ(stripes.held(0, 12345), 12345u);
}

// 5:1:1 is the example in nginx's commit: a a b a c a a.
TEST(Stripes, FilesTakeTurns) {
  EXPECT_EQ(pattern({3, 3, 3}), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(pattern({5e9, 1e9, 1e9}), (std::vector<uint32_t>{0, 0, 1, 0, 2, 0, 0}));
  EXPECT_EQ(pattern({2, 4}), (std::vector<uint32_t>{1, 0, 1}));
  EXPECT_EQ(pattern({3, 2}), (std::vector<uint32_t>{0, 1, 0, 1, 0}));
  EXPECT_EQ(pattern({2.504, 2.5}), (std::vector<uint32_t>{0, 1}));  // as equal as can be measured
}

// Period 5, counts 3 and 2, turns 0 1 0 1 0: stripe 13 is the fourth of the third period.
TEST(Stripes, AFileHoldsItsStripesInOrder) {
  const Stripes stripes(Parts{3, 2});
  EXPECT_EQ(stripes.locate(13).file, 1u);
  EXPECT_EQ(stripes.locate(13).index, 2 * 2 + 1u);
  EXPECT_EQ(stripes.held(0, 13), 2 * 3 + 2u);
  EXPECT_EQ(stripes.held(1, 13), 2 * 2 + 1u);
  EXPECT_DOUBLE_EQ(stripes.share(0), 0.6);
}

// Even a file that is a thousand times slower has one stripe in each period.
TEST(Stripes, TheSlowestHasAStripe) {
  const Stripes stripes(Parts{1000, 1});
  EXPECT_EQ(stripes.held(1, stripes.pattern().size()), 1u);
  EXPECT_LE(stripes.pattern().size(), 1024u);
  EXPECT_NEAR(stripes.share(1), 1 / 1001.0, 0.005 / 1001);
  EXPECT_EQ(pattern({1e30, 1e-18}).size(), 1024u);  // the longest period allowed
  EXPECT_EQ(pattern(Parts(kStripeFilesMax, 7.0)).size(), kStripeFilesMax);
}

TEST(Stripes, NoPartIsNoMapping) {
  EXPECT_DEATH(Stripes(Parts{}), "number of files");
  EXPECT_DEATH(Stripes(Parts(kStripeFilesMax + 1, 1.0)), "number of files");
  for (const double part : {0.0, -1.0, double{NAN}, double{INFINITY}})
    EXPECT_DEATH(Stripes(Parts{1, part}), "part of a file");
}

// For random shares up to 20 times apart: stripes fill places without overlap or gap, files get their shares,
// and any run of stripes is spread.
TEST(Stripes, AnyParts) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponent(0, std::log(20.0));
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    Parts parts(1 + random() % 8);
    for (double& part : parts) part = 1e9 * std::exp(exponent(random));
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    const Stripes stripes(parts);
    ASSERT_LE(stripes.pattern().size(), 1024u);

    std::vector<uint64_t> next(parts.size());  // the next index in each file: the mapping is a bijection
    const uint64_t stripes_seen = 2 * stripes.pattern().size() + random() % 100;
    for (uint64_t stripe = 0; stripe < stripes_seen; ++stripe) {
      for (uint32_t f = 0; f < parts.size(); ++f) ASSERT_EQ(stripes.held(f, stripe), next[f]) << stripe;
      const Stripes::Place place = stripes.locate(stripe);
      ASSERT_LT(place.file, parts.size());
      ASSERT_EQ(place.index, next[place.file]++);
    }
    // The file that finishes a large transfer last takes at most 0.5 % longer than with exact shares. With up
    // to 8 files, a period of at most 1024 always suffices for that.
    for (uint32_t f = 0; f < parts.size(); ++f)
      EXPECT_LE(stripes.share(f), 1.005 * (1 + 1e-9) * parts[f] / sum);
    // Any run of stripes holds each file's share of it to within two stripes (observed for all of these).
    const uint64_t begin = random() % stripes_seen, length = 1 + random() % 64;
    for (uint32_t f = 0; f < parts.size(); ++f) {
      const auto held = static_cast<double>(stripes.held(f, begin + length) - stripes.held(f, begin));
      EXPECT_NEAR(held, static_cast<double>(length) * stripes.share(f), 2) << "file " << f;
    }
  }
}

}  // namespace
}  // namespace sluice
