#include "engine/run/start/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/suggest.h"
#include "engine/rates/drives.h"
#include "gpu/cuda/device.h"

namespace sluice {

namespace {

constexpr uint64_t kMachineBytesMax = 1 << 20;

MachineRates read_machine(const MemoryOptions& options) {
  std::string machine = options.device.kind == DeviceKind::cuda ? kGpuMachine : kDefaultMachine;
  if (!options.machine.empty()) machine = options.machine;
  if (auto known = built_in_machine(machine)) return *std::move(known);
  std::error_code ignored;
  if (!std::filesystem::exists(machine, ignored))
    throw Error(ExitCode::usage,
                "There is no built-in machine description " + printable(machine) + ", and no such file.",
                suggestion(machine, built_in_machine_list()) + " Files: docs/machine.md.");
  return parse_machine_rates(read_text_file(machine, kMachineBytesMax), machine);
}

// The sum of the rates of the nvme tier's drives, each as drive_weight() gives it, in bytes a second.
double drives_speed(const MachineRates& rates) {
  double sum = 0;
  for (const DriveRates& drive : rates.drives)
    if (drive.tier == kNvmeTier) sum += drive_weight(drive);
  return sum;
}

}  // namespace

MachineRates resolve_machine(const MemoryOptions& options) {
  MachineRates rates = read_machine(options);
  if (options.nvme_directories.empty()) return rates;
  const double speed_described = drives_speed(rates);
  const std::vector<DriveRates> drives = match_drives(rates.drives, kNvmeTier, options.nvme_directories);
  std::erase_if(rates.drives, [](const DriveRates& drive) { return drive.tier == kNvmeTier; });
  rates.drives.insert(rates.drives.end(), drives.begin(), drives.end());
  if (!drives.empty() && rates.memory && rates.memory->nvme) {
    const double bytes = static_cast<double>(*rates.memory->nvme) * drives_speed(rates) / speed_described;
    rates.memory->nvme = static_cast<uint64_t>(std::llround(std::min(bytes, kTierBytesMost)));
  }
  return rates;
}

std::optional<MachineRates> described_machine(const MemoryOptions& options) {
  if (options.machine.empty()) return std::nullopt;
  MachineRates rates = resolve_machine(options);
  if (!rates.memory) return std::nullopt;
  return rates;
}

std::string other_gpu_note(const MemoryOptions& options, const std::string& gpu) {
  const MachineRates rates = read_machine(options);
  if (rates.gpu.empty() || describes_gpu(rates, gpu)) return "";
  const std::string described = printable(rates.gpu);
  return fmt::format(
      "Times are predicted at the rates of {}. These are another GPU's{}. Name a description of yours with "
      "--machine, or measure its machine with sluice bench.",
      printable(rates.name),
      gpu.empty() ? ", unless yours is " + described
                  : ": those of " + described + ", where this machine has " + printable(gpu));
}

std::string gpu_rates_note(const MemoryOptions& options) {
  const MachineRates rates = read_machine(options);
  if (rates.gpu.empty()) return "";
  const std::string name = printable(rates.name);
  return fmt::format(
      "Times are predicted at the rates of {}, whose layers run on a GPU ({}): these are not those of "
      "--device {}. Leave out --device for that machine, or --machine for this one.",
      name, printable(rates.gpu), options.device.kind == DeviceKind::reference ? "reference" : "cpu");
}

std::vector<std::string> settle_device(Options& options, bool precision_is_settled,
                                       const MachineRates* elsewhere) {
  DeviceChoice& device = options.memory.device;
  if (device.kind != DeviceKind::automatic && device.kind != DeviceKind::cuda) {
    const std::string note = gpu_rates_note(options.memory);
    return note.empty() ? std::vector<std::string>{} : std::vector{note};
  }
  if (elsewhere) {
    if (device.kind == DeviceKind::automatic)
      device.kind = elsewhere->memory->device ? DeviceKind::cuda : DeviceKind::cpu;
    const LaneRates* compute = find_lane(*elsewhere, "compute", "device");
    const bool lacks_bf16 = compute && compute->flops.bf16 == kUnlimited && compute->flops.fp16 < kUnlimited;
    if (!lacks_bf16 || options.numbers.precision != DType::bf16) return {};
    const std::string lacks = printable(elsewhere->name) + " has no rate for bf16";
    if (precision_is_settled || is_given(options, "precision"))
      throw Error(ExitCode::environment, lacks + ".", "Give --precision fp16, or another --machine.");
    options.numbers.precision = DType::f16;
    return {lacks + ": --precision is fp16."};
  }
  const CudaStatus status = cuda_status(device.ordinal);
  if (device.kind == DeviceKind::automatic) {
    device.kind = status.available ? DeviceKind::cuda : DeviceKind::cpu;
    // Where there is a driver, the user may expect that a GPU is used.
    if (!status.available && status.driver_version > 0) return {status.reason + " So --device is cpu."};
  }
  if (!status.available) return {};
  std::vector<std::string> notes;
  if (!status.bf16 && !precision_is_settled && !is_given(options, "precision")) {
    options.numbers.precision = DType::f16;
    notes.push_back(status.name + " has no bf16: --precision is fp16.");
  }
  if (const std::string other = other_gpu_note(options.memory, status.name); !other.empty())
    notes.push_back(other);
  return notes;
}

std::string settle_algorithms(MemoryOptions& options, const std::string& of_run) {
  const std::string& file = options.matmul_algorithms;
  const std::string name = "--matmul-algorithms " + printable(file);
  const auto note_of_replacement = [&] {
    if (of_run.empty() || of_run == options.chosen_algorithms) return std::string();
    return name + " replaces the run's: sums are rounded in another order from here on.";
  };
  options.chosen_algorithms = file.empty() ? of_run : "";
  if (file == "none") return note_of_replacement();
  if (file.empty())
    return of_run.empty()
               ? ""
               : "Matrix products: by the algorithms that the run was given with --matmul-algorithms.";
  if (options.device.kind != DeviceKind::cuda)
    throw Error(ExitCode::usage, name + " is for --device cuda, and this is another device.",
                "Leave out --matmul-algorithms.");
  options.chosen_algorithms =
      parse_machine_rates(read_text_file(file, kMachineBytesMax), file).matmul_algorithms;
  if (options.chosen_algorithms.empty())
    throw Error(ExitCode::usage, printable(file) + " has no algorithms of matrix products.",
                "Time them with `sluice bench`, with the --model and --batch of the run.");
  return note_of_replacement();
}

std::unique_ptr<Device> make_device(const MemoryOptions& options, int threads) {
  switch (options.device.kind) {
    case DeviceKind::reference:
      return make_reference_device();
    case DeviceKind::cuda:
      return make_cuda_device(options.device.ordinal, {.matmul_algorithms = options.chosen_algorithms});
    case DeviceKind::cpu:
    case DeviceKind::automatic:
      break;
  }
  return make_cpu_device(threads);
}

AcceleratorRanks connect_accelerators(Device& device, const Ranks& ranks) {
  Accelerator* const accelerator = device.accelerator();
  if (ranks.size() == 1 || !accelerator) return {nullptr, ""};
  return accelerator->connect(*ranks.lane);
}

std::optional<AcceleratorUse> accelerator_use(Device& device) {
  Accelerator* const accelerator = device.accelerator();
  if (!accelerator) return std::nullopt;
  return AcceleratorUse{accelerator->memory(), process_peak_bytes()};
}

DeviceNeeds needs_of(const Device& device) {
  return {[&device](const OpShapes& shapes, Pass pass) { return device.workspace_bytes(shapes, pass); },
          device.sizes()};
}

}  // namespace sluice
