// Changes that a profile suggests: each is a plan of its own.
#include "engine/profile/what_if.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/profile_support.h"

namespace sluice {
namespace {

// The figures of each suggested change are those of a plan made for it. The best change comes first.
TEST_F(Profiles, ChangesArePlansOfTheirOwn) {
  const TestRun run = three_tiers();
  const auto device = make_device(run.options.memory, run.threads);
  const PlanRequest request = request_of(run, *device);
  const Plan plan = std::get<Plan>(make_plan(request));
  const auto with = [&](const Change& change) {
    PlanRequest other = request;
    other.machine.tiers[change.tier].capacity = change.to;
    auto result = make_plan(other);
    return std::holds_alternative<Plan>(result) ? std::optional(std::move(std::get<Plan>(result)))
                                                : std::nullopt;
  };
  std::vector<Amounts> memory;
  for (TierId t = 0; t < 2; ++t) {
    const uint64_t now = request.machine.tiers[t].capacity;
    memory.push_back({{Change::Kind::capacity, t, now, 2 * now}, {Change::Kind::capacity, t, now, 8 * now}});
  }
  const std::vector<WhatIf> changes = best_changes(memory, plan, with);
  ASSERT_FALSE(changes.empty());
  double before = std::numeric_limits<double>::infinity();
  for (const WhatIf& change : changes) {
    const Plan other = with(change.change).value();
    EXPECT_EQ(other.step_seconds, change.outlook.step_seconds);
    EXPECT_LE(change.outlook.tokens_per_second, before);
    EXPECT_GT(change.outlook.tokens_per_second, outlook_of(plan).tokens_per_second);
    before = change.outlook.tokens_per_second;
    double idle = 0;
    for (const WorkSeconds& w : change.outlook.waits) idle += w.seconds;
    EXPECT_LT(idle, change.outlook.step_seconds);
  }
  // A change that is refused is left out, and the next smaller amount takes its place.
  const auto refuses_most = [&](const Change& change) {
    if (change.to == 8 * change.from) throw Error(ExitCode::usage, "Too much.", "Give less.");
    return with(change);
  };
  for (const WhatIf& change : best_changes(memory, plan, refuses_most))
    EXPECT_LE(change.change.to, 2 * change.change.from);
  EXPECT_TRUE(best_changes(memory, plan, [](const Change&) { return std::optional<Plan>(); }).empty());
}

}  // namespace
}  // namespace sluice
