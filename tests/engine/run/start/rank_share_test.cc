// What each rank takes of the machine that ranks share: cores, memory, drives.
#include "engine/run/start/rank_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "offload/system/processors.h"
#include "tests/support/processor_sets.h"
#include "tests/support/test_directory.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

void on_ranks(int count, const std::function<void(const Ranks&)>& rank) {
  run_in_process(count, rank,
                 [](const std::exception& e) { ADD_FAILURE() << "a rank is stuck after: " << e.what(); });
}

// The shares of all ranks, in order of rank. The thread of each rank first calls `as` with its rank.
std::vector<RankShare> shares_of(
    int ranks, const MemoryOptions& memory, const std::function<void(int rank)>& as = [](int) {}) {
  std::vector<RankShare> shares(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](const Ranks& r) {
    const Bound restored(allowed_processors());
    as(r.rank());
    shares[static_cast<size_t>(r.rank())] = rank_share(memory, r);
  });
  return shares;
}

ShownGpus shown(const std::vector<uint64_t>& gpus, int first = 0) {
  ShownGpus out{first, static_cast<int>(gpus.size()), {}};
  std::copy(gpus.begin(), gpus.end(), out.gpus.begin());
  return out;
}

using Ordinals = std::vector<int>;

TEST(RankGpus, RanksThatAreShownAllTakeThemInTurn) {
  const ShownGpus all = shown({0xa, 0xb, 0xc, 0xd});
  EXPECT_EQ(choose_gpus({all, all, all}), (Ordinals{0, 1, 2}));
  const ShownGpus from_second = shown({0xa, 0xb, 0xc, 0xd}, 1);
  EXPECT_EQ(choose_gpus({from_second, from_second}), (Ordinals{1, 2}));
}

// With --gpus-per-task or a wrapper script, each rank is shown GPUs of its own.
TEST(RankGpus, RanksThatAreShownTheirOwnTakeThese) {
  EXPECT_EQ(choose_gpus({shown({0xa}), shown({0xb}), shown({0xc})}), (Ordinals{0, 0, 0}));
  EXPECT_EQ(choose_gpus({shown({0xa, 0xb}), shown({0xc, 0xd}), shown({0xe, 0xf})}), (Ordinals{0, 0, 0}));
  EXPECT_EQ(choose_gpus({shown({0xa, 0xb}), shown({0xb, 0xa})}), (Ordinals{0, 0}));  // nearest first
  EXPECT_EQ(choose_gpus({shown({0xa, 0xb}), shown({0xa, 0xc})}), (Ordinals{0, 1}));
}

TEST(RankGpus, WhereNoneIsLeftOneIsMissing) {
  const ShownGpus one = shown({0xa});
  EXPECT_EQ(choose_gpus({one, one, one}), (Ordinals{0, 1, 1}));
  EXPECT_EQ(choose_gpus({shown({}), shown({}, 3)}), (Ordinals{0, 3}));
  EXPECT_EQ(choose_gpus({shown({0xa}, 2)}), (Ordinals{2}));
}

TEST(RankShares, OneRankTakesTheMachineAsItIs) {
  const RankShare share = rank_share({}, {});
  EXPECT_FALSE(share.processors);
  EXPECT_FALSE(share.memory.threads);
  EXPECT_TRUE(share.notes.empty());
}

TEST(RankShares, RanksHaveCoresOfTheirOwn) {
  const auto cores = cores_of(allowed_processors());
  const std::vector<RankShare> shares = shares_of(2, {});
  if (cores.size() < 2) {
    EXPECT_FALSE(shares[0].processors);
    EXPECT_EQ(shares[0].memory.threads, 1);
    return;
  }
  ASSERT_TRUE(shares[0].processors && shares[1].processors);
  EXPECT_EQ(*shares[0].processors, share_of(cores, 0, 2).processors);
  EXPECT_EQ(*shares[1].processors, share_of(cores, 1, 2).processors);
  EXPECT_EQ(shares[1].memory.threads, share_of(cores, 1, 2).threads);
  ASSERT_EQ(shares[0].notes.size(), 1u);
  EXPECT_NE(shares[0].notes[0].find("Each of the 2 ranks here has "), std::string::npos);
  EXPECT_NE(shares[0].notes[0].find("on cores of its own."), std::string::npos);
}

TEST(RankShares, GivenThreadsStayAndAreNotSqueezed) {
  MemoryOptions memory;
  memory.threads = 1000;
  for (const RankShare& share : shares_of(2, memory)) {
    EXPECT_EQ(share.memory.threads, 1000);
    EXPECT_FALSE(share.processors);
  }
}

TEST(RankShares, MoreRanksThanCoresAreNotBound) {
  const int ranks = static_cast<int>(cores_of(allowed_processors()).size()) + 1;
  const std::vector<RankShare> shares = shares_of(ranks, {});
  for (const RankShare& share : shares) EXPECT_FALSE(share.processors);
  EXPECT_NE(shares[0].notes.at(0).find("shares the cores, since there are fewer cores than ranks."),
            std::string::npos);
}

// mpirun and Slurm may give each rank processors of its own.
TEST(RankShares, ProcessorsOfItsOwnAreKept) {
  const std::vector<int> processors = list_of(allowed_processors());
  if (processors.size() < 2) GTEST_SKIP() << "one processor";
  const auto shares = shares_of(2, {}, [&](int rank) {
    ASSERT_TRUE(allow_processors(set_of({processors[static_cast<size_t>(rank)]})));
  });
  for (const RankShare& share : shares) {
    EXPECT_FALSE(share.processors);
    EXPECT_EQ(share.memory.threads, 1);
  }
}

// taskset gives one mask to all ranks.
TEST(RankShares, AMaskThatAllHaveIsDividedWithin) {
  const ProcessorSet last = set_of({list_of(allowed_processors()).back()});
  for (const RankShare& share : shares_of(2, {}, [&](int) { ASSERT_TRUE(allow_processors(last)); })) {
    EXPECT_FALSE(share.processors);  // fewer cores than ranks
    EXPECT_EQ(share.memory.threads, 1);
  }
}

TEST(RankShares, MemoryAndDiskAreDividedAndTheLeastHoldsForAll) {
  const TestDirectory directory;
  MemoryOptions memory;
  memory.threads = 1;
  memory.nvme_directories = {directory / ""};
  const Budgets alone = resolve_shared_budgets(memory, {}, std::nullopt);
  constexpr int kRanks = 3;
  std::vector<Budgets> found(kRanks);
  on_ranks(kRanks, [&](const Ranks& r) {
    found[static_cast<size_t>(r.rank())] = resolve_shared_budgets(memory, r, std::nullopt);
  });
  for (const Budgets& b : found) {
    EXPECT_EQ(b.host.limit, found[0].host.limit);
    EXPECT_EQ(b.nvme->limit, found[0].nvme->limit);
  }
  // Each rank takes a third of what is free, less its part of the margin. Other processes come and go.
  EXPECT_LT(static_cast<double>(found[0].host.limit), static_cast<double>(alone.host.limit) * 0.4);
  EXPECT_GT(static_cast<double>(found[0].host.limit),
            static_cast<double>(alone.host.limit) * 0.25 - 600.0 * kMiB);
  EXPECT_LT(static_cast<double>(found[0].nvme->limit), static_cast<double>(alone.nvme->limit) * 0.4);
  EXPECT_NE(found[0].notes.at(0).find(" MiB for each of the 3 ranks here, which leaves "), std::string::npos);
}

// All ranks together leave one margin to the rest of the machine.
TEST(RankShares, ManyRanksLeaveTheMarginTogether) {
  MemoryOptions memory;
  memory.threads = 1;
  MemoryLimits limits;
  limits.available = 512 * kMiB;  // a quarter of 2 GiB
  EXPECT_EQ(resolve_budgets(memory, limits, false, std::nullopt, 4).host.limit, (512 - 128) * kMiB);
  EXPECT_EQ(resolve_budgets(memory, limits, false, std::nullopt, 1).host.limit, (512 - 128) * kMiB);
  limits.available = 1536 * kMiB;
  EXPECT_EQ(resolve_budgets(memory, limits, false, std::nullopt, 4).host.limit, (1536 - 128) * kMiB);
  EXPECT_EQ(resolve_budgets(memory, limits, false, std::nullopt, 1).host.limit, (1536 - 384) * kMiB);
}

// A budget in bytes holds for each rank.
TEST(RankShares, GivenBytesStay) {
  MemoryOptions memory;
  memory.threads = 1;
  on_ranks(2, [&](const Ranks& r) {
    MemoryOptions mine = memory;
    mine.host = {Size::Kind::bytes, (100 + static_cast<uint64_t>(r.rank())) * kMiB};
    EXPECT_EQ(resolve_shared_budgets(mine, r, std::nullopt).host.limit, mine.host.bytes);
  });
}

// Whatever other ranks were given, no rank takes more than it was allowed, nor a tier that it does not have.
TEST(RankShares, WhatOneRankWasGivenIsNotForOthers) {
  const TestDirectory directory;
  on_ranks(3, [&](const Ranks& r) {
    MemoryOptions mine;
    mine.threads = 1;
    if (r.rank() == 1) mine.host = {Size::Kind::bytes, 100 * kMiB};
    if (r.rank() == 1) mine.gpu = {Size::Kind::percent, 0, 1};
    if (r.rank() == 2) mine.nvme_directories = {directory / ""};
    const Budgets found = resolve_shared_budgets(mine, r, std::nullopt);
    EXPECT_EQ(found.host.limit == 100 * kMiB, r.rank() == 1);
    EXPECT_EQ(found.device.has_value(), r.rank() == 1);
    EXPECT_EQ(found.nvme.has_value(), r.rank() == 2);
  });
}

TEST(RankShares, LimitsAreDivided) {
  MemoryLimits limits;
  limits.available = 1000 * kMiB;
  limits.cgroup_limit = 900 * kMiB;
  limits.cgroup_used = 100 * kMiB;
  limits.address_space = 500 * kMiB;
  limits.address_space_used = 100 * kMiB;
  const MemoryLimits of_four = shared_by(4, 1, limits), in_one = shared_by(4, 4, limits);
  EXPECT_EQ(of_four.available, 250 * kMiB);
  EXPECT_EQ(of_four.cgroup_left(), 200 * kMiB);
  EXPECT_EQ(of_four.usable(), 200 * kMiB);
  EXPECT_EQ(of_four.address_space_used, 100 * kMiB);  // every process has its own
  EXPECT_EQ(in_one.address_space - in_one.address_space_used, 100 * kMiB);
  const MemoryLimits none = shared_by(4, 4, MemoryLimits{});
  EXPECT_EQ(none.cgroup_left(), kNoLimit);
  EXPECT_EQ(none.address_space, kNoLimit);
}

TEST(RanksTogether, AreConsecutiveAndEquallyMany) {
  EXPECT_EQ(ranks_together({0}), 1);
  EXPECT_EQ(ranks_together({0, 0, 0}), 3);
  EXPECT_EQ(ranks_together({0, 0, 2, 2, 4, 4}), 2);
  EXPECT_EQ(ranks_together({0, 0, 0, 0, 4, 4}), 2);  // machines of four and two
  EXPECT_EQ(ranks_together({0, 0, 0, 3}), 1);
  EXPECT_EQ(ranks_together({0, 1, 0, 1}), 1);  // dealt out in turn
}

}  // namespace
}  // namespace sluice
