// Ranks of one process exchange bytes, and none waits for ever when another is lost.
#include "gpu/ranks/communicator.h"

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tests/support/communicator_conformance.h"

namespace sluice {
namespace {

void on_all_ranks(int count, const std::function<void(Communicator&)>& work) {
  const auto ranks = make_in_process_communicators(count);
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&work, &rank] { work(*rank); });
  for (std::thread& t : threads) t.join();
}

class Ranks : public ::testing::TestWithParam<int> {};

TEST_P(Ranks, EveryCollectiveMovesWhatItSays) {
  expect_collectives_move(on_all_ranks, GetParam());
  EXPECT_EQ(make_in_process_communicators(GetParam()).size(), static_cast<size_t>(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Counts, Ranks, ::testing::Values(1, 2, 3, 4, 7));

TEST(InProcess, AnAllGatherInPlaceKeepsItsOwnPart) { expect_own_part_kept_in_place(on_all_ranks); }
TEST(InProcess, GroupsKeepToThemselves) { expect_groups_keep_to_themselves(on_all_ranks); }
TEST(InProcess, PartsOfAnyLengthArrive) { expect_parts_of_any_length_arrive(on_all_ranks); }

TEST(InProcess, AnAbortEndsEveryCall) { expect_an_abort_ends_every_call(on_all_ranks, 200); }

// Rank 2 never comes. Whichever rank has waited longest says so, and all end with its sentence.
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

// A long time between two looks counts little, or a process that was stopped would blame the others.
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
