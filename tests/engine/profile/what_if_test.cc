// Changes that a profile suggests: each is a plan of its own.
#include "engine/profile/what_if.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/support/profile_support.h"

namespace sluice {
namespace {

// The figures of each suggested change are those of a plan made for it. The best change comes first.
TEST_F(Profiles, ChangesArePlansOfTheirOwn) {
  const TestRun run = three_tiers();
  const auto device = make_device(run.options.memory, run.threads);
  const PlanRequest request = request_of(run, *device);
  const Plan plan = std::get<Plan>(make_plan(request));
  const std::vector<WhatIf> changes = best_changes(request, plan, run.options.batch.micro_batch, false);
  ASSERT_FALSE(changes.empty());
  double before = std::numeric_limits<double>::infinity();
  for (const WhatIf& change : changes) {
    const Plan other =
        std::get<Plan>(make_plan(with_change(request, change.change, run.options.batch.micro_batch, 64)));
    EXPECT_EQ(other.step_seconds, change.outlook.step_seconds);
    EXPECT_LE(change.outlook.tokens_per_second, before);
    EXPECT_GT(change.outlook.tokens_per_second, outlook_of(plan).tokens_per_second);
    before = change.outlook.tokens_per_second;
    double idle = 0;
    for (const WorkSeconds& w : change.outlook.waits) idle += w.seconds;
    EXPECT_LT(idle, change.outlook.step_seconds);
  }
  // A run that goes on keeps its batch.
  for (const WhatIf& change : best_changes(request, plan, run.options.batch.micro_batch, true))
    EXPECT_NE(change.change.kind, Change::Kind::batch);
}

}  // namespace
}  // namespace sluice
