#include "gpu/cuda/nvml.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace sluice {
namespace {

// The first part of an entry of the list of processes. Only this part is read. Two numbers of 4 bytes follow
// it, and with some drivers since 535 another of 8 bytes, although the function's name is the same.
struct ProcessEntry {
  unsigned pid;
  unsigned long long bytes;
};
constexpr size_t kShortEntry = 24, kLongEntry = 32;
constexpr unsigned kProcessesMost = 1024;
constexpr std::byte kUnwritten{0xA5};

// The length of the list's entries, found from how much the driver has written.
size_t entry_bytes(const std::vector<std::byte>& list, unsigned count) {
  const auto last = std::find_if(list.rbegin(), list.rend(), [](std::byte b) { return b != kUnwritten; });
  const auto written = static_cast<size_t>(list.rend() - last);
  return written > count * kShortEntry ? kLongEntry : kShortEntry;
}

}  // namespace

NvmlGpu::NvmlGpu(const Known<NvmlApi>& api, const std::string& pci_bus_id) : reason_(api.reason) {
  if (!api.value) return;
  api_ = *api.value;
  int result = api_.nvmlInit_v2();
  if (result != 0) {
    reason_ = clause(result, "nvmlInit");
    return;
  }
  initialized_ = true;
  result = api_.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.c_str(), &gpu_);
  if (result == 0) return;
  reason_ = clause(result, "nvmlDeviceGetHandleByPciBusId");
  gpu_ = nullptr;
}

NvmlGpu::~NvmlGpu() {
  if (initialized_) (void)api_.nvmlShutdown();  // nothing is left to be done about a failure
}

std::string NvmlGpu::clause(int result, const char* function) const {
  return std::string(function) + " says: " + api_.nvmlErrorString(result);
}

Known<std::string> NvmlGpu::driver_version() const {
  if (!initialized_) return {{}, reason_};
  char version[96] = {};  // the interface asks for 80 at least
  const int result = api_.nvmlSystemGetDriverVersion(version, sizeof version - 1);
  if (result != 0) return {{}, clause(result, "nvmlSystemGetDriverVersion")};
  return {version, ""};
}

Known<NvmlMemory> NvmlGpu::memory() const {
  if (gpu_ == nullptr) return {{}, reason_};
  NvmlApi::Memory memory{};
  const int result = api_.nvmlDeviceGetMemoryInfo(gpu_, &memory);
  if (result != 0) return {{}, clause(result, "nvmlDeviceGetMemoryInfo")};
  return {NvmlMemory{memory.total, memory.used, memory.free}, ""};
}

Known<NvmlLink> NvmlGpu::link() const {
  if (gpu_ == nullptr) return {{}, reason_};
  const struct {
    int (*ask)(NvmlApi::Gpu, unsigned*);
    const char* name;
    int NvmlLink::*field;
  } questions[] = {
      {api_.nvmlDeviceGetCurrPcieLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration",
       &NvmlLink::generation},
      {api_.nvmlDeviceGetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration",
       &NvmlLink::generation_max},
      {api_.nvmlDeviceGetCurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth", &NvmlLink::width},
      {api_.nvmlDeviceGetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth", &NvmlLink::width_max},
  };
  NvmlLink link;
  for (const auto& question : questions) {
    unsigned value = 0;
    const int result = question.ask(gpu_, &value);
    if (result != 0) return {{}, clause(result, question.name)};
    link.*question.field = static_cast<int>(value);
  }
  return {link, ""};
}

std::optional<uint64_t> NvmlGpu::process_bytes() const {
  if (gpu_ == nullptr) return std::nullopt;
  std::vector<std::byte> list(kProcessesMost * kLongEntry, kUnwritten);
  unsigned count = kProcessesMost;
  if (api_.nvmlDeviceGetComputeRunningProcesses_v3(gpu_, &count, list.data()) != 0) return std::nullopt;
  count = std::min(count, kProcessesMost);
  const size_t stride = entry_bytes(list, count);
  for (unsigned i = 0; i < count; ++i) {
    ProcessEntry entry;
    std::memcpy(&entry, list.data() + i * stride, sizeof entry);
    constexpr unsigned long long kNotAvailable = ~0ull;  // on a GPU that is cut into instances
    // 0 cannot be right, since a process that asks has a context. Drivers up to 560 report 0 in a container:
    // they translate the process ids in the list, but look up the memory by the untranslated id.
    if (entry.pid == static_cast<unsigned>(getpid()) && entry.bytes != 0 && entry.bytes != kNotAvailable)
      return entry.bytes;
  }
  return std::nullopt;
}

}  // namespace sluice
