// What set-up code asks of one GPU through the CUDA runtime. Any thread; throws Error(environment).
#pragma once

#include <string>

#include "gpu/cuda/nvml.h"

namespace sluice::cuda {

// Chooses the GPU that the calling thread uses from here on. Makes its context, so that memory figures
// include it.
int choose_gpu(int ordinal);

// The PCI bus id, spelt as sysfs and NVML do: "0000:e0:00.0".
std::string pci_bus_id(int ordinal);

// The memory of the calling thread's GPU, as the CUDA runtime sees it.
NvmlMemory runtime_memory();

}  // namespace sluice::cuda
