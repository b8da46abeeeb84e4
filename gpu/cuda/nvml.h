// NVIDIA's management library (NVML): what the driver knows of one GPU and the CUDA runtime does not tell,
// such as the memory that all processes hold, and what this process holds of it.
//
// libnvidia-ml.so.1 comes with the driver, so it is opened at run time and never linked. Nothing here throws:
// a question without an answer says why. Tests put functions of their own in place of the library's. Callers:
// set-up code, the budget check of a prepared device, and `sluice doctor`, on any thread, as NVML allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

// A value, or a clause that goes on after "not known, because".
template <class T>
struct Known {
  std::optional<T> value;
  std::string reason;
};

// The functions of the library that are used, with its names, signatures and result codes (0: done). They are
// declared here after NVML's published interface, which is kept stable.
struct NvmlApi {
  using Gpu = struct nvmlDevice_st*;
  struct Memory {  // nvmlMemory_t
    unsigned long long total, free, used;
  };
  int (*nvmlInit_v2)() = nullptr;
  int (*nvmlShutdown)() = nullptr;
  const char* (*nvmlErrorString)(int result) = nullptr;
  int (*nvmlSystemGetDriverVersion)(char* version, unsigned length) = nullptr;
  int (*nvmlDeviceGetHandleByPciBusId_v2)(const char* pci_bus_id, Gpu* gpu) = nullptr;
  int (*nvmlDeviceGetMemoryInfo)(Gpu gpu, Memory* memory) = nullptr;
  int (*nvmlDeviceGetCurrPcieLinkGeneration)(Gpu gpu, unsigned* generation) = nullptr;
  int (*nvmlDeviceGetMaxPcieLinkGeneration)(Gpu gpu, unsigned* generation) = nullptr;
  int (*nvmlDeviceGetCurrPcieLinkWidth)(Gpu gpu, unsigned* lanes) = nullptr;
  int (*nvmlDeviceGetMaxPcieLinkWidth)(Gpu gpu, unsigned* lanes) = nullptr;
  // `count`: the entries that `processes` has room for; on return, the number of processes.
  int (*nvmlDeviceGetComputeRunningProcesses_v3)(Gpu gpu, unsigned* count, void* processes) = nullptr;
};

// Opens the library that the driver installed. It stays open until the process ends. The tests' emulation of
// CUDA defines this function itself (tests/emulation/nvml_emulation.cc).
Known<NvmlApi> open_nvml();

struct NvmlMemory {
  uint64_t total = 0, used = 0, free = 0;  // bytes, of all processes and the driver
};

struct NvmlLink {  // PCIe; an idle GPU lowers its generation
  int generation = 0, generation_max = 0, width = 0, width_max = 0;
};

// One GPU as NVML sees it.
class NvmlGpu {
 public:
  // `pci_bus_id` as CUDA writes it: "0000:17:00.0".
  NvmlGpu(const Known<NvmlApi>& api, const std::string& pci_bus_id);
  ~NvmlGpu();
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  Known<std::string> driver_version() const;
  Known<NvmlMemory> memory() const;
  Known<NvmlLink> link() const;
  // What this process has allocated on the GPU: context, modules, handles, arena; not the page tables of host
  // memory that it pinned. None where the driver does not list this process, or lists it with 0 bytes, as in
  // containers whose process numbers differ from the driver's. Then take differences of memory().used.
  std::optional<uint64_t> process_bytes() const;

 private:
  std::string clause(int result, const char* function) const;

  NvmlApi api_;
  bool initialized_ = false;
  NvmlApi::Gpu gpu_ = nullptr;
  std::string reason_;  // why there is no gpu_
};

}  // namespace sluice
