// NVML over the emulated GPU.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "gpu/cuda/nvml.h"
#include "tests/emulation/gpu_model.h"

namespace sluice {
namespace {

using Gpu = NvmlApi::Gpu;

template <unsigned kValue>
int tell(Gpu, unsigned* value) {
  *value = kValue;
  return 0;
}

// The handle of GPU 0 is 1.
int ordinal_of(Gpu gpu) { return static_cast<int>(reinterpret_cast<uintptr_t>(gpu)) - 1; }

int tell_memory(Gpu gpu, NvmlApi::Memory* memory) {
  const emulation::MemoryUse use = emulation::memory_use(ordinal_of(gpu));
  const uint64_t used = std::min(use.total, use.held + use.page_tables + use.others);
  *memory = {use.total, use.total - used, used};
  return 0;
}

// An entry is 24 bytes: the process's number, its memory 8 bytes later.
int list_processes(Gpu gpu, unsigned* count, void* list) {
  const emulation::Nvml nvml = emulation::current().nvml;
  *count = nvml == emulation::Nvml::lists_none ? 0 : 1;
  if (*count == 0) return 0;
  const auto pid = static_cast<unsigned>(getpid());
  const bool told = nvml == emulation::Nvml::lists_processes;
  const unsigned long long bytes = told ? emulation::memory_use(ordinal_of(gpu)).held : 0;
  std::memset(list, 0, 24);
  std::memcpy(list, &pid, sizeof pid);
  std::memcpy(static_cast<std::byte*>(list) + 8, &bytes, sizeof bytes);
  std::memset(static_cast<std::byte*>(list) + 16, 0xFF, 8);  // no instance
  return 0;
}

}  // namespace

Known<NvmlApi> open_nvml() {
  if (emulation::current().nvml == emulation::Nvml::absent) return {{}, "the emulated GPU has none"};
  NvmlApi api;
  api.nvmlInit_v2 = [] { return 0; };
  api.nvmlShutdown = [] { return 0; };
  api.nvmlErrorString = [](int) { return "an error that nothing here returns"; };
  api.nvmlSystemGetDriverVersion = [](char* version, unsigned) {
    std::strcpy(version, "emulated");
    return 0;
  };
  api.nvmlDeviceGetHandleByPciBusId_v2 = [](const char* pci_bus_id, Gpu* gpu) {
    constexpr size_t kDigit = 6;  // of "0000:E0:00.0"
    const int ordinal = pci_bus_id[kDigit] - '0' - emulation::current().hidden;
    *gpu = reinterpret_cast<Gpu>(static_cast<uintptr_t>(ordinal + 1));
    return 0;
  };
  api.nvmlDeviceGetMemoryInfo = tell_memory;
  api.nvmlDeviceGetCurrPcieLinkGeneration = api.nvmlDeviceGetMaxPcieLinkGeneration = tell<4>;
  api.nvmlDeviceGetCurrPcieLinkWidth = api.nvmlDeviceGetMaxPcieLinkWidth = tell<16>;
  api.nvmlDeviceGetComputeRunningProcesses_v3 = list_processes;
  return {api, ""};
}

}  // namespace sluice
