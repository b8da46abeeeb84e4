// Ranks of one process exchange bytes, and none waits for ever when one is lost.
#include "gpu/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "engine/error.h"

namespace sluice {
namespace {

void on_all_ranks(int count, const std::function<void(Communicator&)>& work) {
  const auto ranks = make_in_process_communicators(count);
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&work, &rank] { work(*rank); });
  for (std::thread& t : threads) t.join();
}

uint32_t value(int from, int to, int round, uint64_t i) {
  return static_cast<uint32_t>(from * 1'000'003 + to * 10'007 + round * 101) + static_cast<uint32_t>(i);
}

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, EveryCollectiveMovesWhatItSays) {
  constexpr uint64_t kCount = 257;
  constexpr uint64_t kBytes = kCount * sizeof(uint32_t);
  const int n = GetParam();
  on_all_ranks(n, [n](Communicator& c) {
    ASSERT_EQ(c.size(), n);
    const auto all = static_cast<size_t>(n);
    for (int round = 0; round < 20; ++round) {
      std::vector<uint32_t> out(kCount * all), in(kCount * all);
      for (uint64_t i = 0; i < kCount; ++i) out[i] = value(c.rank(), 0, round, i);
      c.all_gather(out.data(), kBytes, in.data());
      for (int r = 0; r < n; ++r)
        for (uint64_t i = 0; i < kCount; ++i)
          ASSERT_EQ(in[static_cast<size_t>(r) * kCount + i], value(r, 0, round, i));

      for (int to = 0; to < n; ++to)
        for (uint64_t i = 0; i < kCount; ++i)
          out[static_cast<size_t>(to) * kCount + i] = value(c.rank(), to, round, i);
      c.all_to_all(out.data(), kBytes, in.data());
      for (int r = 0; r < n; ++r)
        for (uint64_t i = 0; i < kCount; ++i)
          ASSERT_EQ(in[static_cast<size_t>(r) * kCount + i], value(r, c.rank(), round, i));

      const int root = round % n;
      std::vector<uint32_t> shared(kCount, static_cast<uint32_t>(c.rank() + round));
      c.broadcast(shared.data(), kBytes, root);
      ASSERT_EQ(shared, std::vector<uint32_t>(kCount, static_cast<uint32_t>(root + round)));
      c.barrier();

      const int next = (c.rank() + 1) % n, before = (c.rank() + n - 1) % n;
      if (n == 1) continue;
      uint32_t mine = value(c.rank(), next, round, 0), got = 0;
      if (c.rank() % 2 == 0) {
        c.send(&mine, sizeof mine, next);
        c.receive(&got, sizeof got, before);
      } else {
        c.receive(&got, sizeof got, before);
        c.send(&mine, sizeof mine, next);
      }
      ASSERT_EQ(got, value(before, c.rank(), round, 0));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Counts, Ranks, testing::Values(1, 2, 3, 4, 7));

TEST(InProcess, AnAllGatherInPlaceKeepsItsOwnPart) {
  on_all_ranks(4, [](Communicator& c) {
    std::vector<int> all(4, -1);
    int* const own = &all[static_cast<size_t>(c.rank())];
    *own = c.rank() * 10;
    c.all_gather(own, sizeof(int), all.data());
    EXPECT_EQ(all, (std::vector<int>{0, 10, 20, 30}));
  });
}

// One rank leaves at some call; the others end with its reason, whatever they are in, and their memory is
// nobody's any more.
TEST(InProcess, AnAbortEndsEveryCall) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> lost{0};
    on_all_ranks(4, [&](Communicator& c) {
      if (c.rank() == 2) {
        for (int i = 0; i < round % 5; ++i) c.barrier();
        return c.abort("rank 2 has had enough");
      }
      try {
        for (int i = 0;; ++i) {
          std::vector<uint64_t> mine(512, 1), all(4 * 512);
          if (i < round % 5) {
            c.barrier();
          } else if (round % 3 == 0) {
            c.all_gather(mine.data(), mine.size() * 8, all.data());
          } else if (round % 3 == 1) {
            c.receive(mine.data(), 8, 2);
          } else {
            c.send(mine.data(), 8, 2);
          }
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::rank_lost);
        EXPECT_STREQ(error.what(), "rank 2 has had enough");
        ++lost;
      }
    });
    ASSERT_EQ(lost, 3);
  }
}

}  // namespace
}  // namespace sluice
