#include "engine/base/shared_library.h"
#include "gpu/cuda/nvml.h"

namespace sluice {

Known<NvmlApi> open_nvml() {
  SharedLibrary library("libnvidia-ml.so.1");
  if (!library.is_open()) return {{}, "libnvidia-ml.so.1, a part of the NVIDIA driver, is not there"};
  NvmlApi api;
#define FIND(name) library.find(api.name, #name)
  FIND(nvmlInit_v2);
  FIND(nvmlShutdown);
  FIND(nvmlErrorString);
  FIND(nvmlSystemGetDriverVersion);
  FIND(nvmlDeviceGetHandleByPciBusId_v2);
  FIND(nvmlDeviceGetMemoryInfo);
  FIND(nvmlDeviceGetCurrPcieLinkGeneration);
  FIND(nvmlDeviceGetMaxPcieLinkGeneration);
  FIND(nvmlDeviceGetCurrPcieLinkWidth);
  FIND(nvmlDeviceGetMaxPcieLinkWidth);
  FIND(nvmlDeviceGetComputeRunningProcesses_v3);
#undef FIND
  if (!library.failure().empty()) return {{}, library.failure()};
  library.keep_open();
  return {api, ""};
}

}  // namespace sluice
