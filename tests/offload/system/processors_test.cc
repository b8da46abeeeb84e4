// The cores of this machine, and how users share the cores of any machine.
#include "offload/system/processors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/processor_sets.h"

namespace sluice {
namespace {

// `count` cores with two processors each, numbered as Linux does: first the first processor of every core.
std::vector<ProcessorSet> cores_of_two(int count) {
  std::vector<ProcessorSet> cores;
  for (int c = 0; c < count; ++c) cores.push_back(set_of({c, count + c}));
  return cores;
}

TEST(ProcessorShares, AreNeighbouringCores) {
  const auto cores = cores_of_two(8);
  EXPECT_EQ(list_of(share_of(cores, 0, 4).processors), (std::vector<int>{0, 1, 8, 9}));
  EXPECT_EQ(list_of(share_of(cores, 3, 4).processors), (std::vector<int>{6, 7, 14, 15}));
  EXPECT_EQ(share_of(cores, 3, 4).threads, 4);
  EXPECT_TRUE(share_of(cores, 3, 4).apart);
  EXPECT_EQ(share_of(cores, 0, 1).threads, 16);
}

// All ranks have equally many threads, or their plans would differ. No core is left over.
TEST(ProcessorShares, WhatDoesNotDivideGoesToSome) {
  const auto cores = cores_of_two(8);
  std::vector<int> all;
  for (int user = 0; user < 3; ++user) {
    const ProcessorShare share = share_of(cores, user, 3);
    EXPECT_EQ(share.threads, 4);
    EXPECT_GE(share.processors.count(), 4);
    for (const int p : list_of(share.processors)) all.push_back(p);
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(ProcessorShares, FewerCoresThanRanksAreShared) {
  const ProcessorShare share = share_of(cores_of_two(2), 2, 3);
  EXPECT_FALSE(share.apart);
  EXPECT_EQ(share.processors.count(), 4);
  EXPECT_EQ(share.threads, 1);
}

TEST(ProcessorShares, CoresHoldEveryAllowedProcessorOnce) {
  const ProcessorSet allowed = allowed_processors();
  ASSERT_GT(allowed.count(), 0);
  ProcessorSet seen;
  int count = 0;
  for (const ProcessorSet& core : cores_of(allowed)) {
    CPU_OR(&seen.bits, &seen.bits, &core.bits);
    count += core.count();
  }
  EXPECT_EQ(seen, allowed);
  EXPECT_EQ(count, allowed.count());
  const ProcessorSet last = set_of({list_of(allowed).back()});
  ASSERT_EQ(cores_of(last).size(), 1u);
  EXPECT_EQ(cores_of(last).front(), last);
}

}  // namespace
}  // namespace sluice
