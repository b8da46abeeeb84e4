// The search against brute force on a model of two layers, in three tiers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/brute_force.h"
#include "tests/support/figures.h"

namespace sluice::testing {
namespace {

Figures& figures = Figures::print_at_end();

TEST(BruteForceInThreeTiers, IsNoBetter) {
  for (const bool clip : {true, false})
    for (const double update : {40e9, 1e9}) {
      PlanRequest request = in_three_tiers(clip, update);
      const uint64_t plenty = plenty_of(request);
      for (const auto& [device, host] :
           {std::pair{60, 40}, {75, 40}, {90, 40}, {60, 75}, {75, 75}, {90, 75}}) {
        request.machine.tiers[0].capacity = plenty * static_cast<uint64_t>(device) / 100;
        request.machine.tiers[1].capacity = plenty * static_cast<uint64_t>(host) / 100;
        const auto result = make_plan(request);
        const std::string what = fmt::format("clip {}, update {:.0f} GB/s, {} % device, {} % host", clip,
                                             update / 1e9, device, host);
        ASSERT_TRUE(std::holds_alternative<Plan>(result)) << what;
        const double found = std::get<Plan>(result).step_seconds, best = best_of_all(request, all_sets(2));
        ASSERT_LT(best, 1e300) << what;
        figures.at_most("search / brute force, three tiers", found / best, kWithin);
        EXPECT_LE(found, kWithin * best) << what;
      }
    }
}

}  // namespace
}  // namespace sluice::testing
