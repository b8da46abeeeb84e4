// Who wakes when a counter rises: the threads whose wait ends, and nobody else.
#include "engine/run/execute/lane_progress.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr LaneId kFirst = 0, kSecond = 1;
constexpr size_t kThreads = 2;  // one for each lane

// A body of three instructions: two on the first lane, and one on the second lane, which has `waits`.
Program two_lanes(std::vector<Wait> waits = {}) {
  Program p;
  p.machine.lanes = {{"first"}, {"second"}};
  Body body;
  body.name = "body";
  body.predecessors = {0};
  for (const LaneId lane : {kFirst, kFirst, kSecond}) {
    body.instructions.emplace_back();
    body.instructions.back().lane = lane;
    body.instructions.back().waits_before.emplace_back();
  }
  body.instructions.back().waits = std::move(waits);
  p.bodies = {body};
  return p;
}

struct Rig {
  explicit Rig(const Program& of) : program(of) {
    progress.add_thread(kFirst);
    progress.add_thread(kSecond);
  }
  uint64_t issue() { return progress.issue(0, {}, 0, false); }
  const Instruction& last() const { return program.bodies[0].instructions.back(); }

  const Program program;
  const LaneOrders orders = lane_orders(program);
  LaneProgress progress{program, orders, kThreads, {}};
};

// How often the calling thread went to sleep so far.
long sleeps() {
  rusage use{};
  CHECK(getrusage(RUSAGE_THREAD, &use) == 0, "getrusage");
  return use.ru_nvcsw;
}

// How often a thread goes to sleep during `await`. Meanwhile the calling thread carries out `change` many
// times, with pauses in which the other thread could wake, and then `last_change`.
long sleeps_during(const std::function<void()>& await, const std::function<void()>& change,
                   const std::function<void()>& last_change) {
  constexpr int kChanges = 200;
  long count = 0;
  std::thread sleeper([&] {
    const long before = sleeps();
    await();
    count = sleeps() - before;
  });
  for (int i = 0; i < kChanges; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    change();
  }
  last_change();
  sleeper.join();
  return count;
}

// One sleep, and a few for the mutex. A thread that woke at each change would sleep 200 times.
constexpr long kSleepsMax = 20;

TEST(LaneProgress, ACountWakesOnlyWhoWaitsForThatLane) {
  Rig rig(two_lanes());
  rig.issue();
  EXPECT_LT(sleeps_during([&] { rig.progress.await_count(kSecond, kSecond, 1); },
                          [&] { rig.progress.count(kFirst); }, [&] { rig.progress.count(kSecond); }),
            kSleepsMax);
}

TEST(LaneProgress, AnEnqueueWakesOnlyWhoWaitsForThatNumber) {
  Rig rig(two_lanes());
  rig.issue();
  EXPECT_LT(sleeps_during([&] { rig.progress.await_enqueued(kSecond, kFirst, 201); },
                          [&] { rig.progress.count_enqueued(kFirst); },
                          [&] { rig.progress.count_enqueued(kFirst); }),
            kSleepsMax);
}

TEST(LaneProgress, AThreadWithSeveralWaitsWakesForTheLast) {
  Rig rig(two_lanes({{kFirst, 2}, {kSecond, 200}}));
  const uint64_t ticket = rig.issue();
  TraceRecord record{};
  const auto await = [&] { rig.progress.await(kSecond, rig.progress.body(ticket), rig.last(), record); };
  EXPECT_LT(sleeps_during(
                await, [&] { rig.progress.count(kSecond); },
                [&] {
                  rig.progress.count(kFirst);
                  rig.progress.count(kFirst);
                }),
            kSleepsMax);
  EXPECT_EQ(record.blocked_on, kFirst);
  EXPECT_EQ(record.blocked_count, 2u);
}

TEST(LaneProgress, TheTrainerWakesForALaneWithoutWorkAndForTheWholeBody) {
  Rig rig(two_lanes());
  const uint64_t ticket = rig.issue();
  EXPECT_LT(sleeps_during([&] { rig.progress.await_idle_lane(); },
                          [&] { rig.progress.count_enqueued(kFirst); }, [&] { rig.progress.count(kSecond); }),
            kSleepsMax);
  EXPECT_LT(sleeps_during([&] { rig.progress.wait(ticket); }, [&] { rig.progress.count(kSecond); },
                          [&] {
                            rig.progress.count(kFirst);
                            rig.progress.count(kFirst);
                          }),
            kSleepsMax);
}

// A body is remembered until every thread has entered a later one: the fifth body waits for the second lane.
TEST(LaneProgress, TheTrainerWakesWhenTheLastThreadHasEnteredABody) {
  Rig rig(two_lanes());
  for (int i = 0; i < 4; ++i) rig.issue();
  uint64_t at = 1;
  EXPECT_LT(sleeps_during([&] { rig.issue(); }, [&] { rig.progress.enter(kFirst, ++at); },
                          [&] { rig.progress.enter(kSecond, 2); }),
            kSleepsMax);
}

TEST(LaneProgress, AStopEndsTheWaitForABodyAndAnIssueToo) {
  Rig rig(two_lanes());
  bool issued = false, stopped = true;
  EXPECT_LT(sleeps_during([&] { issued = rig.progress.await_body(kSecond, 1); },
                          [&] { rig.progress.count(kFirst); }, [&] { rig.issue(); }),
            kSleepsMax);
  EXPECT_TRUE(issued);
  EXPECT_LT(sleeps_during([&] { stopped = !rig.progress.await_body(kSecond, 2); },
                          [&] { rig.progress.count(kFirst); }, [&] { rig.progress.stop(); }),
            kSleepsMax);
  EXPECT_TRUE(stopped);
}

// Two threads that wake each other in turn, while a third one changes other values: a wake-up that was lost
// would leave both asleep.
TEST(LaneProgress, NoWakeUpIsLost) {
  constexpr uint64_t kTurns = 20000;
  Rig rig(two_lanes());
  rig.issue();
  std::thread first([&] {
    for (uint64_t turn = 1; turn <= kTurns; ++turn) {
      rig.progress.count(kFirst);
      rig.progress.await_count(kFirst, kSecond, turn);
    }
  });
  std::thread second([&] {
    for (uint64_t turn = 1; turn <= kTurns; ++turn) {
      rig.progress.await_count(kSecond, kFirst, turn);
      rig.progress.count(kSecond);
    }
  });
  for (uint64_t turn = 1; turn <= kTurns; ++turn) rig.progress.count_enqueued(kFirst);
  first.join();
  second.join();
  rig.progress.await_enqueued(kFirst, kFirst, kTurns);
}

}  // namespace
}  // namespace sluice
