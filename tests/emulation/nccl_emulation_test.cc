// Ranks that exchange bytes of their GPUs' memory through the stand-in for NCCL: what every communicator must
// do, which ranks are refused, and how a rank that fails ends all.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/base/clock.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/nccl_communicator.h"
#include "tests/emulation/nothing_on_the_gpu.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/cuda_communicator.h"

namespace sluice {
namespace {

using emulation::EmulatedGpu;

// Connects ranks, rank i on GPU gpus[i], and calls `work` on each with what it got.
void on_gpus(const std::vector<int>& gpus,
             const std::function<void(AcceleratorRanks&, Communicator&)>& work) {
  const auto hosts = make_in_process_communicators(static_cast<int>(gpus.size()));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < gpus.size(); ++i)
    threads.emplace_back([&, i] {
      cuda::choose_gpu(gpus[i]);
      const cuda::Stream stream;
      AcceleratorRanks ranks = cuda::connect_by_nccl(open_nccl(), gpus[i], stream, *hosts[i]);
      work(ranks, *hosts[i]);
    });
  for (std::thread& t : threads) t.join();
}

std::vector<int> one_each(int count) {
  std::vector<int> gpus;
  for (int i = 0; i < count; ++i) gpus.push_back(i);
  return gpus;
}

void on_all_ranks(int count, const std::function<void(Communicator&)>& work) {
  on_gpus(one_each(count), [&](AcceleratorRanks& ranks, Communicator&) {
    ASSERT_NE(ranks.communicator, nullptr) << ranks.reason;
    HostMemoryCommunicator on_host(*ranks.communicator);
    work(on_host);
  });
}

class Nccl : public ::testing::Test {
 protected:
  static constexpr int kGpus = 4;
  static EmulatedGpu gpus(uint32_t seed = 0) { return {.seed = seed, .count = kGpus}; }
  void SetUp() override { emulation::set_up(gpus()); }
  void TearDown() override {
    expect_nothing_on_the_gpu();
    emulation::set_up({});
  }
};

TEST_F(Nccl, EveryCollectiveMovesWhatItSays) {
  for (uint32_t seed = 0; seed < 3; ++seed)
    for (const int ranks : {1, 2, 3, kGpus}) {
      emulation::set_up(gpus(seed));
      expect_collectives_move(on_all_ranks, ranks);
    }
}

TEST_F(Nccl, PartsOfAnyLengthArrive) { expect_parts_of_any_length_arrive(on_all_ranks); }
TEST_F(Nccl, AnAllGatherInPlaceKeepsItsOwnPart) { expect_own_part_kept_in_place(on_all_ranks); }
TEST_F(Nccl, GroupsKeepToThemselves) { expect_groups_keep_to_themselves(on_all_ranks); }

TEST_F(Nccl, AnAbortEndsEveryCall) { expect_an_abort_ends_every_call(on_all_ranks, 15); }

TEST_F(Nccl, NamesItself) {
  on_gpus(one_each(2), [](AcceleratorRanks& ranks, Communicator&) {
    ASSERT_NE(ranks.communicator, nullptr) << ranks.reason;
    EXPECT_EQ(ranks.communicator->transport(), "NCCL 2.28.9");
  });
}

TEST_F(Nccl, NobodyIsConnectedWhereOneIsRefused) {
  const auto reasons = [](const std::vector<int>& gpus) {
    std::vector<std::string> all(gpus.size());
    on_gpus(gpus, [&](AcceleratorRanks& ranks, Communicator& host) {
      EXPECT_EQ(ranks.communicator, nullptr);
      all[static_cast<size_t>(host.rank())] = ranks.reason;
    });
    return all;
  };
  emulation::set_up({.count = kGpus, .nccl_version = 0});
  EXPECT_EQ(reasons({0, 1}), std::vector<std::string>(2, "on rank 0 the emulated machine has none"));
  emulation::set_up({.count = kGpus, .nccl_version = 21805});
  EXPECT_EQ(reasons({0, 1}),
            std::vector<std::string>(2, "on rank 0 NCCL is 2.18.5, and 2.20.0 is the oldest that is used"));
  emulation::set_up(gpus());
  EXPECT_EQ(reasons({0, 1, 1}),
            std::vector<std::string>(3, "on rank 0 NCCL's ncclCommInitRankConfig says: invalid usage"));
}

// The most seconds that ranks take if none waits out the minute that NCCL is given.
constexpr double kAtOnce = 10;

// Every rank's reason why there is no communicator on `gpus`. All ranks know it at once.
std::vector<std::string> reasons_of_three(const EmulatedGpu& gpus) {
  emulation::set_up(gpus);
  std::vector<std::string> reasons(3);
  const double begin = steady_seconds();
  on_gpus(one_each(3), [&](AcceleratorRanks& ranks, Communicator& host) {
    EXPECT_EQ(ranks.communicator, nullptr);
    reasons[static_cast<size_t>(host.rank())] = ranks.reason;
  });
  EXPECT_LT(steady_seconds() - begin, kAtOnce);
  return reasons;
}

// NCCL does not tell the other ranks, which would wait for the one that failed.
TEST_F(Nccl, WhatOneRankFailsAtWhileTheyConnectIsToldToAll) {
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(reasons_of_three({.count = kGpus, .nccl_rank_that_cannot_join = rank}),
              std::vector<std::string>(3, "on rank " + std::to_string(rank) +
                                              " NCCL's ncclCommInitRankConfig says: system error"));
  constexpr uint64_t kWarmUp = 3 * 7;
  std::set<std::string> found;
  for (uint64_t at = 0; at < kWarmUp; ++at) {
    const auto reasons =
        reasons_of_three({.seed = static_cast<uint32_t>(at), .count = kGpus, .nccl_call_that_fails = at});
    EXPECT_TRUE(reasons[0].ends_with(" NCCL's exchange says: remote error")) << reasons[0];
    EXPECT_EQ(reasons, std::vector<std::string>(3, reasons[0]));
    found.insert(reasons[0]);
  }
  EXPECT_GT(found.size(), 1u) << "always the same rank";
  // Failures before the rank waits for others.
  for (uint64_t at = 0; at < 3 * 2; ++at) {
    const auto reasons = reasons_of_three({.count = kGpus, .allocation_that_fails = at});
    EXPECT_NE(reasons[0].find("on rank "), std::string::npos) << reasons[0];
    EXPECT_EQ(reasons, std::vector<std::string>(3, reasons[0]));
  }
}

// A rank is lost while NCCL says of a communicator only that it is in progress, as it may do for ever.
TEST_F(Nccl, ALostRankEndsConnectingAtOnce) {
  const auto hosts = make_in_process_communicators(2);
  Known<NcclApi> api = open_nccl();
  api.value->ncclCommGetAsyncError = [](NcclApi::Rank, int* result) {
    *result = NcclApi::kInProgress;
    return static_cast<int>(NcclApi::kSuccess);
  };
  const double begin = steady_seconds();
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        cuda::choose_gpu(rank);
        const cuda::Stream stream;
        cuda::connect_by_nccl(api, rank, stream, *hosts[static_cast<size_t>(rank)]);
        ADD_FAILURE() << "the ranks are connected";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::rank_lost);
        EXPECT_STREQ(error.what(), "a rank is gone");
        ++told;
      }
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  hosts[0]->abort("a rank is gone");
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(told, 2);
  EXPECT_LT(steady_seconds() - begin, kAtOnce);
}

// Any call of any rank may fail. That rank says why, the others say that it is gone, and all end.
TEST_F(Nccl, AFailureOfOneRankEndsAll) {
  emulation::set_up(gpus());
  on_all_ranks(3, [](Communicator& c) { expect_collectives_move(c, 0); });
  const uint64_t calls = emulation::counts().nccl_calls, warm_up = 3 * 7;
  ASSERT_GT(calls, warm_up);
  for (uint64_t at = warm_up; at < calls; ++at) {
    emulation::set_up({.seed = static_cast<uint32_t>(at), .count = kGpus, .nccl_call_that_fails = at});
    std::atomic<int> failed{0}, told{0};
    on_all_ranks(3, [&](Communicator& c) {
      try {
        for (int round = 0; round < 3; ++round) expect_collectives_move(c, round);
        ADD_FAILURE() << "nothing has failed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::rank_lost);
        const bool own = std::string(error.what()) != "a rank is gone";
        EXPECT_EQ(std::string(error.what()), own ? "NCCL's exchange says: remote error." : "a rank is gone");
        ++(own ? failed : told);
        c.abort("a rank is gone");
      }
    });
    EXPECT_EQ(failed, 1) << at;
    EXPECT_EQ(told, 2) << at;
  }
}

// Rank 2 does not come. The rank that runs out of patience first says so, and all end with its error.
TEST_F(Nccl, WhoIsNotAnsweredSaysFor) {
  std::atomic<int> told{0};
  on_gpus(one_each(3), [&](AcceleratorRanks& ranks, Communicator& host) {
    host.barrier();
    if (host.rank() == 2) return;
    Communicator& c = *ranks.communicator;
    c.set_patience(0.25);
    c.note("at step 5 for the test");
    const cuda::GpuBytes part(8), all(24);
    try {
      c.all_gather(c.everyone(), part.data, 8, all.data);
      c.finish();
      ADD_FAILURE() << "the work is done";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::rank_lost);
      const std::string found = error.what(), start = "Ranks have not answered by NCCL for 0.25 s: rank ";
      EXPECT_TRUE(found == start + "0 waits at step 5 for the test." ||
                  found == start + "1 waits at step 5 for the test.")
          << found;
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
}

// What NCCL takes of a GPU is taken when ranks are connected, and given back at the end.
TEST_F(Nccl, MemoryIsTakenAtOnceAndGivenBack) {
  constexpr uint64_t kBytes = 48 << 20;
  emulation::set_up({.count = kGpus, .nccl_bytes = kBytes});
  on_gpus(one_each(2), [](AcceleratorRanks& ranks, Communicator& host) {
    ASSERT_NE(ranks.communicator, nullptr) << ranks.reason;
    host.barrier();
    EXPECT_EQ(emulation::counts().allocated_bytes, 2 * kBytes);
    host.barrier();
  });
  EXPECT_EQ(emulation::counts().allocated_bytes, 0u);
}

using NcclDeathTest = Nccl;

// The stand-in sees ranks whose calls differ.
TEST_F(NcclDeathTest, RanksThatDifferAreSeen) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(on_all_ranks(2,
                           [](Communicator& c) {
                             uint64_t data[4] = {};
                             if (c.rank() == 0)
                               c.broadcast(data, 8, 0);
                             else
                               c.broadcast(data, 16, 0);
                           }),
              testing::ExitedWithCode(1), "ranks make different calls");
  EXPECT_EXIT(on_all_ranks(2,
                           [](Communicator& c) {
                             uint64_t data[4] = {};
                             if (c.rank() == 0)
                               c.send(data, 8, 1);
                             else
                               c.receive(data, 16, 0);
                           }),
              testing::ExitedWithCode(1), "another length");
}

// It also sees misuse by direct calls of the library.
TEST_F(NcclDeathTest, MisuseIsSeen) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const NcclApi api = *open_nccl().value;
  const auto alone = [&api] {  // a communicator of one rank, ready
    cuda::choose_gpu(0);
    NcclApi::UniqueId id;
    NcclApi::Config config;
    NcclApi::Rank rank = nullptr;
    EXPECT_EQ(api.ncclGetUniqueId(&id), NcclApi::kSuccess);
    EXPECT_EQ(api.ncclCommInitRankConfig(&rank, 1, id, 0, &config), NcclApi::kInProgress);
    int result = NcclApi::kInProgress;
    EXPECT_EQ(api.ncclCommGetAsyncError(rank, &result), NcclApi::kSuccess);
    EXPECT_EQ(result, NcclApi::kSuccess);
    return rank;
  };
  const auto gather = [&api](NcclApi::Rank rank, cudaStream_t stream) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, 64), cudaSuccess);
    return api.ncclAllGather(data, data, 64, NcclApi::kBytes, rank, stream);
  };
  const auto exits = testing::ExitedWithCode(1);
  EXPECT_EXIT(
      {
        const NcclApi::Rank rank = alone();
        EXPECT_EQ(api.ncclCommAbort(rank), NcclApi::kSuccess);
        gather(rank, nullptr);
      },
      exits, "a use of a communicator that was aborted");
  EXPECT_EXIT(
      {
        const NcclApi::Rank rank = alone();
        gather(rank, nullptr);
        gather(rank, nullptr);
      },
      exits, "before the one before was settled");
  EXPECT_EXIT(
      {
        const NcclApi::Rank rank = alone();
        cuda::choose_gpu(1);
        gather(rank, nullptr);
      },
      exits, "on another GPU than the rank's");
  EXPECT_EXIT(
      {
        const NcclApi::Rank rank = alone();
        api.ncclGroupStart();
        api.ncclCommAbort(rank);
      },
      exits, "a group that was not ended");
  EXPECT_EXIT(api.ncclGroupEnd(), exits, "a group that was not started");
}

}  // namespace
}  // namespace sluice
