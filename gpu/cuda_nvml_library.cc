#include <dlfcn.h>

#include "gpu/cuda_nvml.h"

namespace sluice {
namespace {

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Known<NvmlApi> open_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {{}, "libnvidia-ml.so.1, a part of the NVIDIA driver, is not there"};
  NvmlApi api;
  const char* missing = nullptr;
#define FIND(name) \
  if (!find(library, #name, api.name)) missing = #name
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
  if (missing == nullptr) return {api, ""};
  dlclose(library);
  return {{}, std::string("libnvidia-ml.so.1 has no ") + missing};
}

}  // namespace sluice
