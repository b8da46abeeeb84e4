// What set-up code asks of one GPU through the CUDA runtime. Any thread; throws Error(environment).
#pragma once

#include <string>

#include "gpu/cuda/nvml.h"

namespace sluice::cuda {

// The GPU that the calling thread uses from here on. Makes its context, so that what it takes can be seen.
int choose_gpu(int ordinal);

// As sysfs and NVML spell it: "0000:e0:00.0".
std::string pci_bus_id(int ordinal);

// Of the calling thread's GPU, as the runtime sees it.
NvmlMemory runtime_memory();

}  // namespace sluice::cuda
