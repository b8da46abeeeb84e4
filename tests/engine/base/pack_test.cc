// Offline layout: cases worked out by hand, and what pack() promises on random timelines.
#include "engine/base/pack.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

std::vector<uint64_t> offsets(const std::vector<PackItem>& items) {
  std::vector<uint64_t> out;
  for (const PackItem& i : items) out.push_back(i.offset);
  return out;
}

TEST(Pack, NothingNeedsNothing) {
  std::vector<PackItem> none;
  EXPECT_EQ(pack(none, 7, 100), 7u);
  std::vector<PackItem> empty{{0, 5, 0}};
  EXPECT_EQ(pack(empty, 7, 100), 7u);
  EXPECT_TRUE(empty[0].placed);
}

TEST(Pack, WhatDoesNotMeetSharesAddresses) {
  std::vector<PackItem> items{{0, 1, 10}, {2, 3, 10}, {4, 4, 30}};
  EXPECT_EQ(pack(items, 5, 35), 35u);
  EXPECT_EQ(offsets(items), (std::vector<uint64_t>{5, 5, 5}));
}

// Positions are inclusive: both items are alive at 3.
TEST(Pack, WhatMeetsDoesNot) {
  std::vector<PackItem> items{{0, 3, 10}, {3, 5, 20}};
  EXPECT_EQ(pack(items, 0, 100), 30u);
  EXPECT_EQ(offsets(items), (std::vector<uint64_t>{20, 0}));  // largest first
}

// While the last item lives, [0, 100) and [190, 270) are free. The item takes the smaller hole, not the
// first.
TEST(Pack, TakesTheTightestHole) {
  std::vector<PackItem> items{{0, 4, 100}, {0, 9, 90}, {0, 4, 80}, {0, 9, 70}, {5, 9, 60}};
  EXPECT_EQ(pack(items, 0, UINT64_MAX), 340u);
  EXPECT_EQ(offsets(items), (std::vector<uint64_t>{0, 100, 190, 270, 190}));
}

// Of items of one size, the one that lives longest is placed first.
TEST(Pack, LongLivesFirst) {
  std::vector<PackItem> items{{0, 0, 10}, {0, 9, 10}, {9, 9, 10}};
  EXPECT_EQ(pack(items, 0, 20), 20u);
  EXPECT_EQ(offsets(items), (std::vector<uint64_t>{10, 0, 10}));
}

TEST(Pack, LeavesOutWhatDoesNotFit) {
  std::vector<PackItem> items{{0, 2, 60}, {1, 3, 50}, {2, 2, 40}};
  EXPECT_EQ(pack(items, 0, 100), 100u);
  EXPECT_TRUE(items[0].placed);
  EXPECT_FALSE(items[1].placed);
  EXPECT_TRUE(items[2].placed);
  EXPECT_EQ(items[2].offset, 60u);
  EXPECT_EQ(pack(items, 0, 150), 150u);
  EXPECT_TRUE(items[1].placed);
}

// Ranges that are placed already, here [10, 20) and [40, 70), leave holes of 10 and 20, and count in the
// peak.
TEST(Pack, BesideWhatIsInPlace) {
  const std::vector<PackItem> there{{0, 99, 10, 10}, {5, 5, 30, 40}};
  std::vector<PackItem> items{{5, 5, 20}, {5, 5, 10}, {5, 5, 15}, {90, 99, 80}};
  EXPECT_EQ(pack(items, 0, UINT64_MAX, PackOrder::by_size, there), 100u);
  EXPECT_EQ(items[0].offset, 20u);
  EXPECT_EQ(items[1].offset, 0u);
  EXPECT_EQ(items[2].offset, 70u);
  EXPECT_EQ(items[3].offset, 20u);
  EXPECT_EQ(pack({}, 0, UINT64_MAX, PackOrder::by_size, there), 70u);
}

TEST(Pack, RandomTimelines) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t positions = seed % 2 == 0 ? 300 : 20000, longest[] = {8, 8, positions / 40, positions / 2};
    std::vector<PackItem> items(100);
    for (PackItem& i : items) {
      i.start = static_cast<uint32_t>(random() % positions);
      i.last = i.start + static_cast<uint32_t>(random() % longest[random() % 4]);
      i.bytes = 64 * (1 + random() % 20);
    }
    std::vector<PackItem> moved = items;
    const uint64_t capacity = 64 * 100, peak = pack(items, 128, capacity);
    uint64_t highest = 128;
    for (size_t a = 0; a < items.size(); ++a) {
      if (!items[a].placed) continue;
      highest = std::max(highest, items[a].offset + items[a].bytes);
      EXPECT_GE(items[a].offset, 128u);
      for (size_t b = 0; b < a; ++b) {
        if (!items[b].placed || items[b].last < items[a].start || items[a].last < items[b].start) continue;
        EXPECT_TRUE(items[b].offset + items[b].bytes <= items[a].offset ||
                    items[a].offset + items[a].bytes <= items[b].offset)
            << a << " and " << b << ", seed " << seed;
      }
    }
    EXPECT_EQ(peak, highest);
    EXPECT_LE(peak, capacity);
    // Without a limit everything is placed, and the base only shifts the result.
    EXPECT_EQ(pack(moved, 128, UINT64_MAX), pack(items, 0, UINT64_MAX) + 128);
    for (size_t a = 0; a < items.size(); ++a)
      EXPECT_TRUE(items[a].placed && moved[a].offset == items[a].offset + 128);
  }
}

}  // namespace
}  // namespace sluice
