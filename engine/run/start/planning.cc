#include "engine/run/start/planning.h"

#include <malloc.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/verify/ranks.h"
#include "engine/verify/verify.h"

namespace sluice {

Plan plan_or_throw(const PlanRequest& request, const Budgets& budgets) {
  auto result = make_plan(request);
  if (const auto* why = std::get_if<Infeasible>(&result)) throw infeasible_error(request, *why, budgets);
  Plan plan = std::move(std::get<Plan>(result));
  check_program(plan);
  malloc_trim(0);  // so that memory of planning does not count beside the arenas
  return plan;
}

void check_program(const Plan& plan) {
  const Program& program = plan.program;
  const std::vector<Violation> violations = verify(program);
  CHECK(violations.empty(), describe(program, violations.front()));
  if (plan.lowering.ranks == 1) return;
  const Program* const roles[] = {&program};  // a single role: all ranks run this program
  const std::optional<std::string> fault = verify_ranks(roles);
  CHECK(!fault, *fault);
}

Error infeasible_error(const PlanRequest& request, const Infeasible& why, const Budgets& budgets) {
  const Machine& machine = request.machine;
  const Tier& tier = machine.tiers[why.tier];
  const uint64_t bytes_needed = why.least[why.tier].value_or(why.least_together[why.tier]);
  const std::string task = why.task.empty() ? "" : " (largest task: " + why.task + ")";
  const std::vector<const TierBudget*> rows = budgets.by_tier();
  const std::vector<uint64_t> limits = budgets.limits_for(why.least_together);
  const auto argument = [&](size_t t, uint64_t bytes) {  // for the user to paste
    return "--" + rows[t]->option + " " + std::to_string(bytes);
  };
  std::string each, together;
  for (size_t t = 0; t < rows.size(); ++t) {
    together += (t ? " " : "") + argument(t, limits[t]);
    if (!why.least[t] || *why.least[t] <= machine.tiers[t].capacity) continue;
    const uint64_t limit = rows[t]->limit_for(*why.least[t]);
    // More pinned memory needs larger page tables, which may leave the device's arena too small.
    if (rows[t] == &budgets.host && budgets.host.driver &&
        page_table_bytes(limit) > page_table_bytes(budgets.host.limit))
      continue;
    each += (each.empty() ? "" : ", or ") + argument(t, limit);
  }
  std::string remedy = each.empty() ? "" : "Enough with the other budgets as given: " + each + ". ";
  remedy += "The least together: " + together + ".";
  if (!machine.tiers.back().file) remedy += " With --nvme-dir DIR, what does not fit goes to drives.";
  return Error(ExitCode::infeasible,
               "The budgets cannot work: the " + tier.name + " arena needs " + std::to_string(bytes_needed) +
                   " bytes" + task + " and may have " + std::to_string(tier.capacity) + ".",
               remedy);
}

}  // namespace sluice
