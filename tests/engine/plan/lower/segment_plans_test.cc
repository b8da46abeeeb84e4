// plan_segments(): the segment plans that lowerings of one model share are those that each would make itself.
#include <gtest/gtest.h>

#include <utility>

#include "engine/plan/lower/lower.h"
#include "tests/support/plan_support.h"
#include "tests/support/same_program.h"
#include "tests/support/search_support.h"

namespace sluice {
namespace {

using testing::Case;

TEST(SegmentPlans, LoweringsWithOtherOptionsShareThem) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Case c = testing::random_case(seed);
    const auto segments = plan_segments(c.model, c.options.workspace_bytes);
    for (const Recompute level : kRecomputes) {
      c.options.recompute.assign(c.use_count(), level);
      testing::lower_case(c, testing::machine_of(testing::Tiers::host));
      Program program;
      program.machine = c.program.machine;
      const Lowering shared = lower(c.model, c.options, program, segments);
      EXPECT_EQ(shared.segments, segments);
      EXPECT_NE(c.lowering.segments, segments);
      EXPECT_TRUE(testing::same(program, c.program));
    }
  }
}

TEST(SegmentPlans, ASearchPlansThemOnce) {
  PlanRequest request = testing::request_for(2, testing::kPlenty, true);
  uint64_t asked = 0;  // for the workspace of an op
  request.lower.workspace_bytes = [&](const OpShapes&, Pass) {
    ++asked;
    return uint64_t{64};
  };
  plan_segments(request.model(2, request.sequence), request.lower.workspace_bytes);
  const uint64_t once = std::exchange(asked, 0);
  ASSERT_GT(once, 0u);
  ASSERT_TRUE(std::holds_alternative<Plan>(make_plan(request)));
  EXPECT_EQ(asked, once);
}

}  // namespace
}  // namespace sluice
