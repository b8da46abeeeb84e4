// Ranks of one process exchange bytes, and none waits for ever when one is lost.
#include "gpu/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <string>
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

// Rank 2 never comes. Whoever waits longest says so, and all end with that.
TEST(InProcess, ARankThatDoesNotAnswerIsNamed) {
  for (const char* call : {"barrier", "send", "receive"}) {
    std::mutex mutex;
    std::set<std::string> told;
    on_all_ranks(3, [&](Communicator& c) {
      if (c.rank() == 2) return;
      c.set_patience(0.25);
      c.note("at step 5 for the test");
      uint64_t word = 0;
      try {
        if (call == std::string("barrier")) c.barrier();
        if (call == std::string("send")) c.send(&word, sizeof word, 2);
        if (call == std::string("receive")) c.receive(&word, sizeof word, 2);
        ADD_FAILURE() << call << " returned";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::rank_lost);
        const std::lock_guard lock(mutex);
        told.insert(error.what());
      }
    });
    ASSERT_EQ(told.size(), 1u) << call;
    const std::string found = *told.begin(), start = "Rank 2 has not answered for 0.25 s: rank ";
    EXPECT_TRUE(found == start + "0 waits at step 5 for the test." ||
                found == start + "1 waits at step 5 for the test.")
        << found;
  }
}

// Of the time between two looks little counts, or a process that was stopped would blame the others.
TEST(WatchedTime, CountsWhileSomebodyLooks) {
  WatchedTime time(100);
  time.look(100.05);
  time.look(100.1);
  EXPECT_NEAR(time.seconds(), 0.1, 1e-9);
  time.look(900);
  EXPECT_NEAR(time.seconds(), 0.3, 1e-9);
  time.restart();
  time.look(900.05);
  EXPECT_NEAR(time.seconds(), 0.05, 1e-9);
}

}  // namespace
}  // namespace sluice
