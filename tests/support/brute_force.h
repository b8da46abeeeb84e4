// Brute force tries all ways in which the first groups of weights, of gradients and of state live higher than
// the rest, with many sets of levels of recomputation.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "engine/simulate/simulate.h"
#include "tests/support/search_support.h"

namespace sluice::testing {

constexpr uint32_t kLead = 3;  // tasks

// Groups before the first bound live in the top tier, those before the next bound in the tier below, and so
// on.
using Division = std::vector<uint32_t>;

// All ways to divide so many groups over the tiers; the rest lives in the lowest tier.
inline std::vector<Division> divisions(uint32_t groups, size_t tiers) {
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

inline TierId home_of(uint32_t group, const Division& d) {
  return static_cast<TierId>(std::upper_bound(d.begin(), d.end(), group) - d.begin());
}

// By buffer. `divided` is by class: weights, gradients, state. Sums of gradients that stay between waves live
// where the gradient does.
inline std::vector<TierId> homes_of(const Program& p, const Lowering& lowering,
                                    const std::array<const Division*, 3>& divided) {
  std::vector<TierId> homes(p.buffers.size(), lowest_tier(p.machine));
  for (uint32_t g = 0; g < lowering.groups.size(); ++g) {
    const GroupBuffers& b = lowering.groups[g];
    homes[b.weights] = home_of(g, *divided[0]);
    homes[b.gradient] = home_of(g, *divided[1]);
    for (const BufferId a : b.accumulators)
      if (p.buffers[a].permanent) homes[a] = home_of(g, *divided[1]);
    for (const BufferId s : b.state) homes[s] = home_of(g, *divided[2]);
  }
  return homes;
}

using Levels = std::vector<Recompute>;  // by layer

// The fastest step at each of some rates, of so many waves, over all divisions and sets of levels. All bodies
// of the best must fit, not only those of its step. Programs do not depend on rates, and are assembled once
// for all.
inline std::vector<double> best_of_all(const PlanRequest& request, const std::vector<MachineRates>& rates,
                                       const std::vector<Levels>& sets, uint32_t waves = 1) {
  const size_t tiers = request.machine.tiers.size();
  std::vector<double> best(rates.size(), 1e300);
  for (const Levels& set : sets) {
    LowerOptions options = request.lower;
    options.waves = waves;
    options.recompute = {Recompute::none};  // the embedding; the choice matters neither here nor for the head
    options.recompute.insert(options.recompute.end(), set.begin(), set.end());
    options.recompute.push_back(Recompute::none);
    Program whole;
    whole.machine = request.machine;
    const Lowering lowering = lower(request.model(2, request.sequence), options, whole);
    const std::vector<BodyId> step = lowering.bodies().step_from(*lowering.bodies().step);
    Program tasks = whole;
    for (size_t b = 0; b < tasks.bodies.size(); ++b)
      if (!std::count(step.begin(), step.end(), b)) tasks.bodies[b].tasks.clear();
    const bool gradients_stay = request.lower.update_waits_for_norm || waves > 1;
    const std::vector<Division> all = divisions(static_cast<uint32_t>(lowering.groups.size()), tiers);
    const std::vector<Division> none{Division(tiers - 1, 0)};
    for (const Division& weights : all)
      for (const Division& gradients : gradients_stay ? all : none)
        for (const Division& state : all) {
          const Arrangement a{homes_of(tasks, lowering, {&weights, &gradients, &state}),
                              std::vector<uint32_t>(tiers, kLead)};
          Program p = tasks;
          if (assemble(p, a)) continue;
          std::vector<double> least = best;
          for (size_t r = 0; r < rates.size(); ++r)
            least[r] = std::min(least[r], steady_step_seconds(p, rates[r], step));
          if (least == best) continue;
          p = whole;
          if (!assemble(p, a)) best = least;
        }
  }
  return best;
}

// Sequences are too short for the level `products` to differ much from `all`.
inline std::vector<Levels> all_sets(uint32_t layers) {
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

}  // namespace sluice::testing
