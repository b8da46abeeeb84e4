#include "gpu/cuda/gpu.h"

#include <algorithm>
#include <cctype>

#include "gpu/cuda/error.h"

namespace sluice::cuda {

int choose_gpu(int ordinal) {
  check_setup(cudaSetDevice(ordinal), "Choosing the GPU");
  check_setup(cudaFree(nullptr), "Starting the GPU");
  return ordinal;
}

std::string pci_bus_id(int ordinal) {
  char text[32] = {};
  check_setup(cudaDeviceGetPCIBusId(text, sizeof text, ordinal), "Asking for the GPU's PCI bus id");
  std::string id = text;
  std::transform(id.begin(), id.end(), id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return id;
}

NvmlMemory runtime_memory() {
  size_t free = 0, total = 0;
  check_setup(cudaMemGetInfo(&free, &total), "Asking for the GPU's memory");
  return {total, total - free, free};
}

}  // namespace sluice::cuda
