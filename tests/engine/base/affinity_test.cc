// Threads and workers run where the thread that makes them is bound.
#include "engine/base/affinity.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <thread>

#include "engine/base/parallel.h"
#include "tests/support/processor_sets.h"

namespace sluice {
namespace {

// Calls `look` once on every thread of `workers`: each thread waits until all have called it.
void on_every_thread(Workers& workers, const std::function<void()>& look) {
  std::latch all(workers.threads());
  workers.parallel_for(workers.threads(), [&](int64_t, int) {
    look();
    all.arrive_and_wait();
  });
}

TEST(Bound, HoldsForThreadsAndWorkersThatAreMadeInItsScope) {
  const ProcessorSet before = allowed_processors();
  const ProcessorSet last = set_of({list_of(before).back()});
  Workers outside(2);
  {
    const Bound bound(last);
    EXPECT_EQ(allowed_processors(), last);
    ProcessorSet of_thread;
    std::thread([&] { of_thread = allowed_processors(); }).join();
    EXPECT_EQ(of_thread, last);
    Workers inside(2);
    for (int round = 0; round < 3; ++round) {
      on_every_thread(inside, [&] { EXPECT_EQ(allowed_processors(), last); });
      // TBB's threads move between the two `Workers`. The calling thread works in both, and its binding
      // stays.
      const auto caller = std::this_thread::get_id();
      on_every_thread(outside, [&] {
        EXPECT_EQ(allowed_processors(), std::this_thread::get_id() == caller ? last : before);
      });
    }
  }
  EXPECT_EQ(allowed_processors(), before);
}

}  // namespace
}  // namespace sluice
