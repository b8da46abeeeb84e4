// The search against brute force on models of four and eight layers, in two tiers.
#include "tests/support/brute_force.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "tests/support/figures.h"

namespace sluice::testing {
namespace {

void expect_as_good(uint32_t layers, bool clip, uint64_t percent, const std::vector<Levels>& sets) {
  const auto roomy = std::get<Plan>(make_plan(request_for(layers, kPlenty, clip)));
  const PlanRequest request =
      request_for(layers, plenty_of(request_for(layers, kPlenty, clip)) * percent / 100, clip);
  const auto result = make_plan(request);
  ASSERT_TRUE(std::holds_alternative<Plan>(result)) << percent;
  const double found = std::get<Plan>(result).step_seconds,
               best = best_of_all(request, {request.rates}, sets)[0];
  figures.at_most(fmt::format("search / brute force, {} layers", layers), found / best, kWithin);
  EXPECT_LE(found, kWithin * best) << layers << " layers in " << percent << " % of plenty, clip " << clip;
  EXPECT_GT(best, roomy.step_seconds) << "not for want of memory";
}

TEST(BruteForce, IsNoBetterForFourLayers) {
  for (const bool clip : {true, false})
    for (const uint64_t percent : {50, 75}) expect_as_good(4, clip, percent, all_sets(4));
}

// Eight micro-batches in one wave, in two, in four and in eight. In some budgets one wave is best, in others
// eight are.
TEST(BruteForce, IsNoBetterForTwoLayersInWaves) {
  std::set<uint32_t> best_waves;
  for (const bool clip : {true, false}) {
    PlanRequest request = request_for(2, kPlenty, clip);
    request.lower.batch = 16;
    const uint64_t plenty = plenty_of(request);
    for (const uint64_t percent : {25, 40, 60}) {
      request.machine.tiers[0].capacity = plenty * percent / 100;
      const auto result = make_plan(request);
      ASSERT_TRUE(std::holds_alternative<Plan>(result)) << percent;
      const double found = std::get<Plan>(result).step_seconds;
      std::pair best{1e300, 0u};
      for (const uint32_t waves : {1, 2, 4, 8})
        best = std::min(best, {best_of_all(request, {request.rates}, all_sets(2), waves)[0], waves});
      figures.at_most("search / brute force, 2 layers, 1 to 8 waves", found / best.first, kWithin);
      EXPECT_LE(found, kWithin * best.first) << percent << " % of plenty, clip " << clip;
      best_waves.insert(best.second);
    }
  }
  EXPECT_TRUE(best_waves.contains(1) && best_waves.contains(8));
}

// Of eight layers, the last few or the first few keep more than the others.
TEST(BruteForce, IsNoBetterForEightLayers) {
  std::vector<Levels> sets;
  for (const auto& [more, less] : {std::pair{Recompute::none, Recompute::all},
                                   {Recompute::none, Recompute::cheap},
                                   {Recompute::cheap, Recompute::all}})
    for (uint32_t kept = 0; kept <= 8; kept += 2)
      for (const bool last : {false, true}) {
        sets.emplace_back();
        for (uint32_t l = 0; l < 8; ++l)
          sets.back().push_back((last ? l >= 8 - kept : l < kept) ? more : less);
      }
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  expect_as_good(8, true, 60, sets);
}

}  // namespace
}  // namespace sluice::testing
