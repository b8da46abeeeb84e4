#include <fmt/format.h>

#include <algorithm>

#include "engine/run/setup.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_nccl.h"
#include "tools/plan_facts.h"
#include "tools/plan_report.h"
#include "tools/run_start.h"
#include "tools/size.h"
#include "tools/verbs.h"

namespace sluice {

namespace {

// For a GPU that this machine lacks: what a driver and a context usually hold.
constexpr uint64_t kDeviceBytesAssumed = 1ull << 30, kHostBytesAssumed = 512ull << 20;
// What NCCL takes of a GPU among the eight of a machine: some tens of channels with buffers of 4 MiB for each
// of its neighbours.
constexpr uint64_t kNcclBytesAssumed = 512ull << 20;

struct PlannedDevice {
  std::unique_ptr<Device> device;  // nullptr: it is only planned for
  WorkspaceBytes workspaces;
  std::optional<AcceleratorUse> use;
  bool ranks_meet = false;         // in its memory, and not in the host's
  std::vector<std::string> notes;  // sentences about what is assumed
};

// Whether the plan is for a GPU that is not here, which needs the device's code and the size of its memory.
bool for_absent_gpu(const MemoryOptions& options) {
  if (options.device.kind != DeviceKind::cuda) return false;
  const CudaStatus status = cuda_status(options.device.ordinal);
  if (status.available) return false;
  if (!status.built)
    throw Error(ExitCode::environment, status.reason,
                "To plan for a GPU takes a build with the CUDA Toolkit, also without a GPU: configure a "
                "fresh build folder where it is, without -DSLUICE_CUDA=OFF, or plan for --device cpu.");
  if (options.gpu.kind != Size::Kind::bytes)
    throw Error(ExitCode::environment, status.reason,
                "To plan for a GPU elsewhere, give --gpu-mem SIZE in bytes, as in --gpu-mem 24GiB. To use "
                "one here: " + status.remedy);
  return true;
}

std::string absent_gpu_note() {
  return fmt::format(
      "A plan for a GPU that is not here. What lies outside the arenas is assumed: for the driver {} of "
      "--gpu-mem and {} of --host-mem, and {} of each for kernels of libraries; page tables, buffers and the "
      "program come on top. Limits that are not given are taken from this machine.",
      format_size(kDeviceBytesAssumed), format_size(kHostBytesAssumed), format_size(kLibraryKernelBytes));
}

// Of several ranks with a GPU each. `here`: on this machine.
void assume_nccl(bool here, PlannedDevice& planned) {
  const Known<int> version = here ? nccl_version(open_nccl()) : Known<int>{};
  if (here && !version.value) {
    planned.notes.push_back("Ranks exchange through host memory, not by NCCL: " + version.reason + ".");
    return;
  }
  planned.ranks_meet = true;
  planned.use->device.free -= std::min(planned.use->device.free, kNcclBytesAssumed);
  planned.use->device.held += kNcclBytesAssumed;
  planned.notes.push_back(
      fmt::format("It is assumed that NCCL{} connects the GPUs and takes {} of --gpu-mem; where it cannot, "
                  "train goes through host memory, and says so.",
                  here ? " " + nccl_version_text(*version.value) : "", format_size(kNcclBytesAssumed)));
}

// `here`: --ranks are not those of another machine.
PlannedDevice planned_device(const Options& options, bool here) {
  PlannedDevice planned;
  if (for_absent_gpu(options.memory)) {
    planned.workspaces = cuda_workspace_bytes;
    planned.use = {{options.memory.gpu.bytes, kDeviceBytesAssumed}, kHostBytesAssumed, false};
    planned.notes.push_back(absent_gpu_note());
  } else {
    planned.device = make_device(options.memory, resolve_threads(options.memory));
    planned.workspaces = workspaces_of(*planned.device);
    planned.use = accelerator_use(*planned.device);
  }
  if (planned.use && options.ranks.count > 1) assume_nccl(here && planned.device, planned);
  return planned;
}

}  // namespace

ExitCode run_plan(Options options, std::FILE* out) {
  const bool of_this_process = !is_given(options, "ranks");
  if (of_this_process) options.ranks.count = options.ranks.per_node = options.ranks.gpus;
  check_options(options, Verb::plan, !options.run.resume.empty());
  RunStart start = open_run_start(options, Verb::plan);
  if (of_this_process && !options.memory.threads)
    options.memory.threads = std::max<int64_t>(1, resolve_threads(options.memory) / options.ranks.gpus);
  const PlannedDevice planned = planned_device(options, of_this_process);
  start.notes.insert(start.notes.end(), planned.notes.begin(), planned.notes.end());
  const int64_t here = ranks_per_node(options.ranks, resolve_machine(options.memory));
  const Budgets budgets =
      resolve_budgets(options.memory, shared_by(here, of_this_process ? here : 1, memory_limits()), false,
                      planned.use, static_cast<int>(here));
  const auto request_now = [&] {
    return plan_request(options, start.source.config, budgets, planned.workspaces,
                        !options.data.validation.empty(), planned.ranks_meet);
  };
  const std::string shared = settle_sharing(options.ranks, request_now());
  if (!shared.empty()) start.notes.push_back(shared);
  const PlanRequest request = request_now();
  const auto result = make_plan(request);
  const auto print_notes = [&] {  // also before a refusal: limits may come from them
    for (const std::string& note : start.notes) std::fprintf(out, "%s\n", note.c_str());
    for (const std::string& note : budgets.notes) std::fprintf(out, "%s\n", note.c_str());
  };
  if (const auto* why = std::get_if<Infeasible>(&result)) {
    if (options.print.json) {
      std::fputs(infeasible_json(request, *why, budgets, options).c_str(), out);
      return ExitCode::infeasible;
    }
    if (!options.print.text) print_notes();
    throw infeasible_error(request, *why, budgets);
  }
  const Plan& plan = std::get<Plan>(result);
  check_program(plan);
  if (options.print.text) {
    std::fputs(to_text(plan.program).c_str(), out);
    return ExitCode::done;
  }
  const std::optional<BreakEven> even = break_even(plan, request);
  if (options.print.json) {
    std::fputs(plan_json(plan, budgets, options, even).c_str(), out);
    return ExitCode::done;
  }
  print_notes();
  std::fputs(plan_text(plan, budgets, options, even).c_str(), out);
  std::fputs(facts_text(plan, facts_of(plan, options)).c_str(), out);
  return ExitCode::done;
}

}  // namespace sluice
