// The search against brute force on a model of two layers, in three tiers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/brute_force.h"
#include "tests/support/figures.h"

namespace sluice::testing {
namespace {

TEST(BruteForceInThreeTiers, IsNoBetter) {
  const std::vector<double> updates{40e9, 1e9};  // bytes/s
  for (const bool clip : {true, false}) {
    std::vector<PlanRequest> requests;
    std::vector<MachineRates> rates;
    for (const double update : updates) {
      requests.push_back(in_three_tiers(clip, update));
      rates.push_back(requests.back().rates);
    }
    const uint64_t plenty = plenty_of(requests[0]);
    for (const auto& [device, host] : {std::pair{60, 40}, {75, 40}, {90, 40}, {60, 75}, {75, 75}, {90, 75}}) {
      for (PlanRequest& r : requests) {
        r.machine.tiers[0].capacity = plenty * static_cast<uint64_t>(device) / 100;
        r.machine.tiers[1].capacity = plenty * static_cast<uint64_t>(host) / 100;
      }
      const std::vector<double> best = best_of_all(requests[0], rates, all_sets(2));
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto result = make_plan(requests[i]);
        const std::string what = fmt::format("clip {}, update {:.0f} GB/s, {} % device, {} % host", clip,
                                             updates[i] / 1e9, device, host);
        ASSERT_TRUE(std::holds_alternative<Plan>(result)) << what;
        const double found = std::get<Plan>(result).step_seconds;
        ASSERT_LT(best[i], 1e300) << what;
        figures.at_most("search / brute force, three tiers", found / best[i], kWithin);
        EXPECT_LE(found, kWithin * best[i]) << what;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
