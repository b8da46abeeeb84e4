#include "engine/profile/what_if.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/profile/profile.h"
#include "engine/simulate/simulate.h"

namespace sluice {

namespace {

constexpr double kWorthwhile = 1.01;  // times the tokens a second without a change
constexpr double kNearly = 0.9;       // times the gain of the largest change

}  // namespace

double tokens_of(const Plan& plan) {
  return static_cast<double>(plan.lowering.mesh.ranks() * plan.lowering.micro_batches()) *
         static_cast<double>(plan.model.micro_batch * plan.model.sequence);
}

Outlook outlook_of(const Plan& plan) {
  constexpr int kSteps = 4;
  const std::vector<BodyId> step = plan.lowering.bodies().usual();
  const Timeline timeline = predicted_timeline(plan.program, plan.rates, repeated(step, kSteps));
  const auto end_of = [&](int s) {
    return norm_end(plan.program.bodies[step.back()], timeline.times[(s + 1) * step.size() - 1]);
  };
  // The last but one of the sequence's steps is measured, since steps repeat themselves by then.
  const double begin = end_of(kSteps - 3), end = end_of(kSteps - 2);
  Outlook outlook{plan.step_seconds, tokens_of(plan) / plan.step_seconds, {}};
  outlook.waits =
      waits_of(timeline.history(plan.program), compute_lane(plan.program.machine), begin, end, false);
  return outlook;
}

std::vector<WhatIf> best_changes(const std::vector<Amounts>& quantities, const Plan& plan,
                                 const PlanWith& plan_with) {
  const double now = outlook_of(plan).tokens_per_second;
  struct Planned {
    WhatIf what_if;
    std::vector<uint64_t> arena_bytes;  // by tier
  };
  const auto planned = [&](const Change& change) -> std::optional<Planned> {
    try {
      const std::optional<Plan> other = plan_with(change);
      if (!other) return std::nullopt;
      return Planned{{change, outlook_of(*other)}, other->program.arena_bytes};
    } catch (const Error&) {  // refused: not advised
      return std::nullopt;
    }
  };
  const auto speed = [](const Planned& p) { return p.what_if.outlook.tokens_per_second; };
  std::vector<WhatIf> best;
  // A plan may take seconds: make few.
  for (Amounts quantity : quantities) {
    std::optional<Planned> most;
    while (!quantity.empty() && !(most = planned(quantity.back()))) quantity.pop_back();
    if (!most || speed(*most) < kWorthwhile * now) continue;
    quantity.pop_back();
    const double enough = now + kNearly * (speed(*most) - now);
    while (!quantity.empty()) {  // a larger amount is assumed to gain more
      const size_t middle = quantity.size() / 2;
      const std::optional<Planned> less = planned(quantity[middle]);
      const bool is_enough = less && speed(*less) >= enough;
      if (is_enough) most = less;
      quantity = is_enough ? Amounts(quantity.begin(), quantity.begin() + middle)
                           : Amounts(quantity.begin() + middle + 1, quantity.end());
    }
    Change taken = most->what_if.change;
    if (taken.kind == Change::Kind::capacity && most->arena_bytes[taken.tier] < taken.to) {
      taken.to = std::max(most->arena_bytes[taken.tier], taken.from);
      const std::optional<Planned> less = planned(taken);
      if (less && speed(*less) >= std::max(enough, kWorthwhile * now)) most = less;
    }
    best.push_back(most->what_if);
  }
  std::stable_sort(best.begin(), best.end(), [](const WhatIf& a, const WhatIf& b) {
    return a.outlook.tokens_per_second > b.outlook.tokens_per_second;
  });
  return best;
}

}  // namespace sluice
