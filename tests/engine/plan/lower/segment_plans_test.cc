// plan_segments(): what lowerings of one model share is what each would make for itself.
#include <gtest/gtest.h>

#include <memory>

#include "engine/plan/lower/lower.h"
#include "tests/support/plan_support.h"
#include "tests/support/same_program.h"

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

}  // namespace
}  // namespace sluice
