#include "engine/run/start/planned_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/units.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/sharing.h"
#include "engine/run/start/text_start.h"
#include "engine/run/train/measured_imbalance.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/nccl.h"

namespace sluice {

namespace {

// For a GPU that this machine lacks: the bytes that a driver and a context usually hold.
constexpr uint64_t kDeviceBytesAssumed = 1ull << 30, kHostBytesAssumed = 512ull << 20;
// What NCCL takes of a GPU's memory in a node of eight: some tens of channels, each with a buffer of 4 MiB
// for each neighbour.
constexpr uint64_t kNcclBytesAssumed = 512ull << 20;
constexpr double kThreadsMost = 1024;  // the largest value of --threads

// Whether the plan is for a GPU that this machine lacks. The size of its memory must then be given.
bool for_absent_gpu(const MemoryOptions& options) {
  if (options.device.kind != DeviceKind::cuda) return false;
  const CudaStatus status = cuda_status(options.device.ordinal);
  if (status.available) return false;
  if (options.gpu.kind != Size::Kind::bytes)
    throw Error(ExitCode::environment, status.reason,
                "To plan for a GPU elsewhere, give --gpu-mem SIZE in bytes, as in --gpu-mem 24GiB, or a "
                "--machine whose description has that size, such as rtx-4090. To use a GPU here: " +
                    status.remedy);
  return true;
}

std::string assumed_note() {
  return fmt::format(
      "What lies outside the arenas is assumed: for the driver {} of --gpu-mem and {} of --host-mem, and {} "
      "of each for kernels of libraries; page tables, buffers and the program come on top.",
      format_size(kDeviceBytesAssumed), format_size(kHostBytesAssumed), format_size(kLibraryKernelBytes));
}

// Says which machine a plan is for, and the sizes of its memory for one rank. `ranks`: how many ranks the
// plan is for.
std::string elsewhere_note(const MachineRates& machine, int64_t ranks) {
  std::string sizes = format_size(machine.memory->host) + " of host memory";
  if (machine.memory->device) sizes = format_size(*machine.memory->device) + " of device memory, " + sizes;
  if (machine.memory->nvme) sizes += ", " + format_size(*machine.memory->nvme) + " of NVMe";
  const std::string source = machine.source.empty() ? "" : " " + printable(machine.source) + ";";
  const std::string each = ranks == 1 ? "" : fmt::format(" for each of {} ranks", ranks);
  return fmt::format("A plan for another machine, {}:{}{} {}.", printable(machine.name), source, each, sizes);
}

// Where the rates of --machine come from, for a description without memory; "" if --machine is not given or
// its description does not say where.
std::string source_note(const MemoryOptions& options) {
  if (options.machine.empty()) return "";
  const MachineRates rates = resolve_machine(options);
  return rates.source.empty()
             ? ""
             : fmt::format("Rates of {}: {}.", printable(rates.name), printable(rates.source));
}

// Sentences for budgets that are larger than what the machine has. They are allowed, since a user may ask
// what a larger machine would do. `here`: the machine is this one.
std::vector<std::string> beyond_notes(const Budgets& budgets, int64_t ranks, bool here) {
  std::vector<std::string> notes;
  for (const TierBudget* row : budgets.by_tier())
    if (row->limit > row->most)
      notes.push_back(fmt::format("--{} {} is more than {}{}: {}.", row->option, format_size(row->limit),
                                  ranks > 1 ? "each rank's part of what " : "what ",
                                  !here                  ? "that machine has"
                                  : row == &budgets.host ? "this machine has"
                                                         : "is free here",
                                  format_size(row->most)));
  return notes;
}

// For several ranks with a GPU each. Settles whether NCCL connects the ranks, and counts the device memory
// that NCCL takes. `here`: the ranks run on this machine.
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

// `here`: the ranks run on this machine. `elsewhere`: the machine that the plan is for, if it is not this
// one.
PlannedDevice planned_device(const Options& options, bool here, const MachineRates* elsewhere) {
  PlannedDevice planned;
  const bool gpu_elsewhere = elsewhere && options.memory.device.kind == DeviceKind::cuda;
  if (gpu_elsewhere || for_absent_gpu(options.memory)) {
    const uint64_t bytes = gpu_elsewhere ? elsewhere->memory->device.value_or(0) : options.memory.gpu.bytes;
    planned.needs = {cuda_workspace_bytes, kCudaSizes};
    planned.use = {
        {bytes - std::min(bytes, kDeviceBytesAssumed), kDeviceBytesAssumed}, kHostBytesAssumed, false};
    planned.notes.push_back(gpu_elsewhere ? assumed_note()
                                          : "A plan for a GPU that is not here. " + assumed_note() +
                                                " Limits that are not given are taken from this machine.");
    if (!gpu_elsewhere && options.memory.machine.empty())
      planned.notes.push_back(other_gpu_note(options.memory, ""));
  } else {
    planned.device = make_device(options.memory, resolve_threads(options.memory));
    planned.needs = needs_of(*planned.device);
    planned.use = accelerator_use(*planned.device);
  }
  if (planned.use && options.ranks.count > 1) assume_nccl(here && planned.device, planned);
  return planned;
}

// Where --threads is not given, it becomes the number of threads of one rank: on this machine or, if there is
// an `elsewhere`, on that machine.
void settle_threads(Options& options, bool of_this_process, const MachineRates* elsewhere) {
  std::optional<int64_t>& threads = options.memory.threads;
  if (threads) return;
  if (of_this_process) threads = std::max<int64_t>(1, resolve_threads(options.memory) / options.ranks.gpus);
  for (size_t p = 0; elsewhere && p < elsewhere->pools.size(); ++p)
    if (elsewhere->pools[p].name == kCoresPool)
      threads = static_cast<int64_t>(std::clamp(elsewhere->pools[p].capacity, 1.0, kThreadsMost));
}

// Predictions for a model with experts assume the imbalance that the run which goes on has measured, unless
// one is given. Returns a sentence, or "" where nothing is measured. A plan does without metrics that cannot
// be read.
std::string assume_measured_imbalance(const RunStart& start, Options& options) try {
  if (options.model.imbalance || !start.checkpoint || start.source.config.experts == 0) return "";
  const std::filesystem::path run =
      std::filesystem::path(start.checkpoint->path()).parent_path().parent_path();
  const bool elsewhere = start.is_same_run && !options.run.metrics.empty();
  const std::string metrics = elsewhere ? options.run.metrics : (run / "metrics.jsonl").string();
  const std::optional<ImbalanceOfRun> measured = imbalance_of_run(metrics);
  if (!measured) return "";
  options.model.imbalance = measured->imbalance;
  const bool drops = start.source.config.capacity_factor > 0;
  return fmt::format("--imbalance {:.3g}: as steps {} to {} of {} had it{}.", measured->imbalance,
                     measured->first, measured->last, printable(run.string()),
                     drops ? ", choices beyond an expert's capacity included" : "");
} catch (const Error& error) {
  return fmt::format("What the run measured of its experts is left out: {}", error.what());
}

Budgets planned_budgets(const Options& options, bool of_this_process, const PlannedDevice& planned,
                        const MachineRates* elsewhere) {
  if (elsewhere) {
    MemoryLimits limits;
    limits.total = limits.available = elsewhere->memory->host;
    Budgets budgets = resolve_budgets(options.memory, limits, false, planned.use, 1, elsewhere->memory->nvme);
    if (budgets.device && elsewhere->memory->device) budgets.device->most = *elsewhere->memory->device;
    return budgets;
  }
  const int64_t here = ranks_per_node(options.ranks, resolve_machine(options.memory));
  return resolve_budgets(options.memory, shared_by(here, of_this_process ? here : 1, memory_limits()), false,
                         planned.use, static_cast<int>(here));
}

}  // namespace

PlannedRun planned_run(Options options) {
  options.ranks.launched = is_given(options, "ranks");
  const bool of_this_process = !options.ranks.launched;
  check_options(options, Verb::plan, manifest_use(options));
  PlannedRun run;
  run.start = open_run_start(options, Verb::plan);
  const std::string imbalance = assume_measured_imbalance(run.start, options);
  if (of_this_process) options.ranks.per_node = options.ranks.count;
  std::optional<MachineRates> described = described_machine(options.memory);
  if (of_this_process && described && described->network.size() > 1 &&
      options.ranks.count > described->network.front().ranks)
    throw Error(ExitCode::usage,
                fmt::format("--gpus {} are those of one machine, and each of {} has {}.", options.ranks.count,
                            printable(described->name), described->network.front().ranks),
                fmt::format("Give --ranks {} for several machines.", options.ranks.count));
  if (described) share_machine(*described, static_cast<uint32_t>(ranks_per_node(options.ranks, *described)));
  const MachineRates* elsewhere = described ? &*described : nullptr;
  std::vector<std::string>& notes = run.start.notes;
  if (elsewhere)
    notes.insert(notes.begin(), elsewhere_note(*elsewhere, options.ranks.count));
  else if (const std::string note = source_note(options.memory); !note.empty())
    notes.insert(notes.begin(), note);
  for (const std::string& note : {imbalance, experts_over_note(options)})
    if (!note.empty()) notes.push_back(note);
  settle_threads(options, of_this_process, elsewhere);
  run.device = planned_device(options, of_this_process, elsewhere);
  notes.insert(notes.end(), run.device.notes.begin(), run.device.notes.end());
  run.budgets = planned_budgets(options, of_this_process, run.device, elsewhere);
  const std::shared_ptr<const SamplePrompts> samples =
      open_samples(options, text_directory(run.start), run.start.source.config);
  if (samples) notes.insert(notes.end(), samples->notes.begin(), samples->notes.end());
  const uint64_t of_tokenizer =
      options.generate.is_planned
          ? tokenizer_table_bytes(options, text_directory(run.start), run.start.source.config)
          : 0;
  run.budgets.reserve_table(table_bytes_with(run.start.source, samples) + of_tokenizer);
  const DataUse data{rows_have_documents(options, text_directory(run.start)),
                     !options.data.validation.empty() || options.data.val_split.percent > 0};
  if (options.data.train.empty() && options.run.resume.empty() && !options.generate.is_planned &&
      has_tokenizer(text_directory(run.start)))
    notes.push_back("Without --data, no chats or texts are planned for, which take a little more memory.");
  for (std::string& note : beyond_notes(run.budgets, options.ranks.count, !elsewhere))
    notes.push_back(std::move(note));
  const auto request_now = [&] {
    return plan_request(options, run.start.source.config, run.budgets, run.device.needs, data,
                        run.device.ranks_meet, sizes_of(samples));
  };
  const std::string shared = settle_sharing(options.ranks, request_now(), run.budgets);
  if (!shared.empty()) notes.push_back(shared);
  run.request = request_now();
  run.options = std::move(options);
  return run;
}

}  // namespace sluice
