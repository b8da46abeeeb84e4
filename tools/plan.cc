#include "engine/run/setup.h"
#include "engine/verify.h"
#include "tools/plan_report.h"
#include "tools/run_start.h"
#include "tools/verbs.h"

namespace sluice {

ExitCode run_plan(Options options, std::FILE* out) {
  const RunStart start = open_run_start(options, Verb::plan);
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), false);
  const std::unique_ptr<Device> device = make_device(options.memory, budgets.threads);
  const PlanRequest request =
      plan_request(options, start.source.config, budgets, *device, !options.data.validation.empty());
  const auto result = make_plan(request);
  if (const auto* why = std::get_if<Infeasible>(&result)) {
    if (options.print.json) {
      std::fputs(infeasible_json(request, *why, budgets).c_str(), out);
      return ExitCode::infeasible;
    }
    throw infeasible_error(request, *why, budgets);
  }
  const Plan& plan = std::get<Plan>(result);
  const std::vector<Violation> violations = verify(plan.program);
  CHECK(violations.empty(), describe(plan.program, violations.front()));
  if (options.print.text) {
    std::fputs(to_text(plan.program).c_str(), out);
    return ExitCode::done;
  }
  if (options.print.json) {
    std::fputs(plan_json(plan, budgets).c_str(), out);
    return ExitCode::done;
  }
  for (const std::string& note : start.notes) std::fprintf(out, "%s\n", note.c_str());
  for (const std::string& note : budgets.notes) std::fprintf(out, "%s\n", note.c_str());
  std::fputs(plan_text(plan, budgets).c_str(), out);
  return ExitCode::done;
}

}  // namespace sluice
