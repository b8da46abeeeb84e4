#include "engine/run/setup.h"
#include "engine/verify.h"
#include "gpu/cuda_device.h"
#include "tools/plan_report.h"
#include "tools/run_start.h"
#include "tools/verbs.h"

namespace sluice {

namespace {

// For a GPU that this machine lacks: what a driver and its libraries usually hold.
constexpr uint64_t kDeviceBytesAssumed = 1ull << 30, kHostBytesAssumed = 512ull << 20;

struct PlannedDevice {
  std::unique_ptr<Device> device;  // nullptr: it is only planned for
  WorkspaceBytes workspaces;
  std::optional<AcceleratorUse> use;
};

// A plan may be for another machine's GPU, if it says how much memory that has.
PlannedDevice planned_device(const MemoryOptions& options) {
  const bool absent = options.device.kind == DeviceKind::cuda && options.gpu.kind == Size::Kind::bytes &&
                      !cuda_status(options.device.ordinal).available;
  PlannedDevice planned;
  if (absent) {
    planned.workspaces = cuda_workspace_bytes;
    planned.use = {{options.gpu.bytes, kDeviceBytesAssumed}, kHostBytesAssumed, false};
  } else {
    planned.device = make_device(options, resolve_threads(options));
    planned.workspaces = workspaces_of(*planned.device);
    planned.use = accelerator_use(*planned.device);
  }
  return planned;
}

}  // namespace

ExitCode run_plan(Options options, std::FILE* out) {
  RunStart start = open_run_start(options, Verb::plan);
  const PlannedDevice planned = planned_device(options.memory);
  if (!planned.device)
    start.notes.push_back(
        "A plan for a GPU that is not here: 1 GiB of --gpu-mem and 512 MiB of --host-mem are assumed for its "
        "driver and libraries.");
  const Budgets budgets = resolve_budgets(options.memory, memory_limits(), false, planned.use);
  const PlanRequest request = plan_request(options, start.source.config, budgets, planned.workspaces,
                                           !options.data.validation.empty());
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
