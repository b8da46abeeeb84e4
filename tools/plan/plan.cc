#include "engine/run/start/planned_run.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/stopping.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/waiting.h"
#include "tools/plan/advice.h"
#include "tools/plan/explain.h"
#include "tools/plan/facts.h"
#include "tools/plan/generation.h"
#include "tools/plan/report.h"
#include "tools/plan/sweep.h"
#include "tools/plan/why.h"

namespace sluice {

ExitCode run_plan(Options given, std::FILE* out) {
  if (!given.plan.sweep.empty()) return run_sweep(given, out);
  if (given.generate.is_planned) return plan_generation(planned_run(std::move(given)), out);
  const PlannedRun run = planned_run(given);
  const Options& options = run.options;
  const auto result = make_plan_patiently(run.request, run.budgets);
  const auto print_notes = [&] {  // also before a refusal, whose limits they may explain
    for (const std::string& note : run.start.notes) show(out, note + "\n");
    for (const std::string& note : run.budgets.notes) show(out, note + "\n");
  };
  if (const auto* why = std::get_if<Infeasible>(&result)) {
    if (options.print.json) {
      std::fputs(infeasible_json(run.request, *why, run.budgets, options).c_str(), out);
      return ExitCode::infeasible;
    }
    if (!options.print.text) print_notes();
    const Waiting waiting(stderr, "looking for what would work");
    throw with_less_work(infeasible_error(run.request, *why, run.budgets), run.request);
  }
  const Plan& plan = std::get<Plan>(result);
  check_program(plan);
  check_stop_time(options, plan);
  if (options.print.text) {
    std::fputs(to_text(plan.program).c_str(), out);
    return ExitCode::done;
  }
  if (!options.plan.why.empty()) {
    print_notes();
    show(out, why_text(plan, options.plan.why));
    return ExitCode::done;
  }
  const std::optional<BreakEven> even = break_even(plan, run.request);
  if (options.print.json) {
    std::fputs(plan_json(plan, run.budgets, options, even).c_str(), out);
    return ExitCode::done;
  }
  print_notes();
  show(out, plan_text(plan, run.budgets, options, even));
  show(out, facts_text(plan, facts_of(plan, options), steps_of(options)));
  if (options.plan.explain) show(out, explain_text(plan));
  if (!options.plan.no_advice) show(out, advice_text(given, run, plan));
  return ExitCode::done;
}

}  // namespace sluice
