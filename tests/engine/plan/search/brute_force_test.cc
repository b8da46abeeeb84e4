// The search against brute force on small models in two and three tiers. Brute force tries all ways in which
// the first groups of weights, of gradients and of state live higher than the rest, with many sets of levels
// of recomputation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "engine/simulate/simulate.h"
#include "tests/support/figures.h"
#include "tests/support/search_support.h"

namespace sluice::testing {
namespace {

Figures& figures = Figures::print_at_end();
constexpr uint32_t kLead = 3;  // tasks

// Groups before the first bound live in the top tier, those before the next bound in the tier below, and so
// on.
using Division = std::vector<uint32_t>;

// All ways to divide so many groups over the tiers; the rest lives in the lowest tier.
std::vector<Division> divisions(uint32_t groups, size_t tiers) {
  std::vector<Division> all{{}};
  for (size_t tier = 0; tier + 1 < tiers; ++tier) {
    std::vector<Division> longer;
    for (const Division& d : all)
      for (uint32_t bound = d.empty() ? 0 : d.back(); bound <= groups; ++bound) {
        longer.push_back(d);
        longer.back().push_back(bound);
      }
    all = std::move(longer);
  }
  return all;
}

TierId home_of(uint32_t group, const Division& d) {
  return static_cast<TierId>(std::upper_bound(d.begin(), d.end(), group) - d.begin());
}

// By buffer. `divided` is by class: weights, gradients, state.
std::vector<TierId> homes_of(const Program& p, const Lowering& lowering,
                             const std::array<const Division*, 3>& divided) {
  std::vector<TierId> homes(p.buffers.size(), lowest_tier(p.machine));
  for (uint32_t g = 0; g < lowering.groups.size(); ++g) {
    const GroupBuffers& b = lowering.groups[g];
    homes[b.weights] = home_of(g, *divided[0]);
    homes[b.gradient] = home_of(g, *divided[1]);
    for (const BufferId s : b.state) homes[s] = home_of(g, *divided[2]);
  }
  return homes;
}

using Levels = std::vector<Recompute>;  // by layer

// The fastest step over all divisions and sets of levels. All bodies of the best must fit, not only its step.
double best_of_all(const PlanRequest& request, const std::vector<Levels>& sets) {
  const size_t tiers = request.machine.tiers.size();
  double best = 1e300;
  for (const Levels& set : sets) {
    LowerOptions options = request.lower;
    options.recompute = {Recompute::none};  // the embedding; the choice matters neither here nor for the head
    options.recompute.insert(options.recompute.end(), set.begin(), set.end());
    options.recompute.push_back(Recompute::none);
    Program whole;
    whole.machine = request.machine;
    const Lowering lowering = lower(request.model(2, request.sequence), options, whole);
    const BodyId step = *lowering.bodies().step;
    Program tasks = whole;
    for (size_t b = 0; b < tasks.bodies.size(); ++b)
      if (b != step) tasks.bodies[b].tasks.clear();
    const std::vector<Division> all = divisions(static_cast<uint32_t>(lowering.groups.size()), tiers);
    const std::vector<Division> none{Division(tiers - 1, 0)};
    for (const Division& weights : all)
      for (const Division& gradients : request.lower.update_waits_for_norm ? all : none)  // else transient
        for (const Division& state : all) {
          const Arrangement a{homes_of(tasks, lowering, {&weights, &gradients, &state}),
                              std::vector<uint32_t>(tiers, kLead)};
          Program p = tasks;
          if (assemble(p, a)) continue;
          const double seconds = steady_step_seconds(p, request.rates, step);
          if (seconds >= best) continue;
          p = whole;
          if (!assemble(p, a)) best = seconds;
        }
  }
  return best;
}

// Sequences are too short for the level `products` to differ much from `all`.
std::vector<Levels> all_sets(uint32_t layers) {
  std::vector<Levels> sets{{}};
  for (uint32_t l = 0; l < layers; ++l) {
    std::vector<Levels> longer;
    for (const Levels& set : sets)
      for (const Recompute level : {Recompute::none, Recompute::cheap, Recompute::all}) {
        longer.push_back(set);
        longer.back().push_back(level);
      }
    sets = std::move(longer);
  }
  return sets;
}

void expect_as_good(uint32_t layers, bool clip, uint64_t percent, const std::vector<Levels>& sets) {
  const auto roomy = std::get<Plan>(make_plan(request_for(layers, kPlenty, clip)));
  const PlanRequest request =
      request_for(layers, plenty_of(request_for(layers, kPlenty, clip)) * percent / 100, clip);
  const auto result = make_plan(request);
  ASSERT_TRUE(std::holds_alternative<Plan>(result)) << percent;
  const double found = std::get<Plan>(result).step_seconds, best = best_of_all(request, sets);
  figures.at_most(fmt::format("search / brute force, {} layers", layers), found / best, kWithin);
  EXPECT_LE(found, kWithin * best) << layers << " layers in " << percent << " % of plenty, clip " << clip;
  EXPECT_GT(best, roomy.step_seconds) << "not for want of memory";
}

TEST(BruteForce, IsNoBetterForFourLayers) {
  for (const bool clip : {true, false})
    for (const uint64_t percent : {50, 75}) expect_as_good(4, clip, percent, all_sets(4));
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

TEST(BruteForce, IsNoBetterInThreeTiers) {
  for (const bool clip : {true, false})
    for (const double update : {40e9, 1e9}) {
      PlanRequest request = in_three_tiers(clip, update);
      const uint64_t plenty = plenty_of(request);
      for (const auto& [device, host] : {std::pair{60, 40}, {60, 75}, {90, 40}}) {
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
