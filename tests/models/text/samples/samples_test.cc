#include "models/text/samples/samples.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

TEST(Samples, AreThoseThatWereAdded) {
  std::mt19937 random(1);
  std::vector<Sample> added;
  Samples samples;
  EXPECT_TRUE(samples.empty());
  EXPECT_TRUE(samples.begin() == samples.end());
  Sample next;
  for (int i = 0; i < 200; ++i) {
    // Each sample is shorter or longer than the one before and differs in some tokens and marks at its end.
    const size_t kept = random() % (next.ids.size() + 1);
    next.ids.resize(kept + random() % 7);
    next.trained.resize(next.ids.size());
    for (size_t t = kept; t < next.ids.size(); ++t)
      next.ids[t] = random() % 3, next.trained[t] = random() % 2;
    if (kept > 0 && random() % 2) next.trained[random() % kept] = true;
    next.is_text = random() % 2;
    next.unknown_characters = random() % 5;
    next.spelled_controls = random() % 5;
    added.push_back(next);
    samples.add(next);
  }
  ASSERT_EQ(samples.size(), added.size());
  const auto same = [](const Sample& a, const Sample& b) {
    return a.ids == b.ids && a.trained == b.trained && a.is_text == b.is_text &&
           a.unknown_characters == b.unknown_characters && a.spelled_controls == b.spelled_controls;
  };
  size_t i = 0;
  for (const Sample& sample : samples) EXPECT_TRUE(same(sample, added[i++]));
  EXPECT_EQ(i, added.size());
  EXPECT_TRUE(same(samples[137], added[137]));
}

TEST(Samples, TheFirstTokenIsNeverTrained) {
  EXPECT_EQ((Sample{.ids = {1, 2, 3}, .trained = {true, false, true}}).trained_tokens(), 1u);
  EXPECT_EQ(Sample{}.trained_tokens(), 0u);
}

}  // namespace
}  // namespace sluice
