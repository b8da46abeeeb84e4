#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <span>

#include "engine/base/clock.h"
#include "gpu/cuda/nccl.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/doctor/report.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kLockAsked = 64 * kMiB;   // above 64 KiB and 8 MiB, the usual limits without root
constexpr uint64_t kPinAsked = 1024 * kMiB;  // enough for copies both ways at once; takes a second at most

DirectoryFacts look_at(const std::string& path) {
  DirectoryFacts facts;
  facts.path = path;
  std::error_code error;
  facts.exists = std::filesystem::exists(path, error);
  facts.probe = probe_nvme_directory(path);
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (!error) facts.file_system = file_system_of(real.string());
  return facts;
}

void look_at_gpu(DoctorFacts& facts) {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) facts.visible_devices = visible;
  // Pinning allocates the pages at once, so no more than a quarter of usable memory is pinned.
  const uint64_t most = std::min(kPinAsked, facts.memory.usable() / 4 / kMiB * kMiB);
  facts.cuda = cuda_facts({facts.ordinal, most, steady_seconds, open_nvml()});
  const Known<NcclApi> nccl = open_nccl();
  facts.nccl = nccl_version(nccl);
  if (nccl.value) facts.nccl_file = nccl.value->file;
  if (!facts.cuda.pci_bus_id.empty()) facts.gpu_node = numa_node_of_card(facts.cuda.pci_bus_id);
}

GpuUse use_of(DeviceKind device) {
  if (device == DeviceKind::cuda) return GpuUse::demanded;
  return device == DeviceKind::automatic ? GpuUse::if_there : GpuUse::none;
}

DoctorFacts gather_facts(const MemoryOptions& options) {
  DoctorFacts facts;
  facts.gpu_use = use_of(options.device.kind);
  facts.ordinal = options.device.ordinal;
  facts.root = geteuid() == 0;
  facts.system = system_facts();
  facts.memory = memory_limits();
  facts.lock_asked = kLockAsked;
  facts.locked = lockable_bytes(kLockAsked);
  for (const IoBackend* backend : std::span(kIoBackends).first(std::size(kIoBackends) - 1))
    facts.io.push_back({backend, backend->make(1, {}).status});
  for (const std::string& path : options.nvme_directories) facts.directories.push_back(look_at(path));
  if (facts.gpu_use != GpuUse::none) look_at_gpu(facts);
  return facts;
}

}  // namespace

ExitCode run_doctor(Options options, std::FILE* out) {
  const DoctorFacts facts = gather_facts(options.memory);
  const std::vector<Check> checks = judge(facts);
  if (options.print.json)
    std::fputs(doctor_json(facts, checks).c_str(), out);
  else
    show(out, doctor_text(facts, checks));
  return ready(checks) ? ExitCode::done : ExitCode::environment;
}

}  // namespace sluice
