// What `sluice doctor` tells of one GPU: the driver's facts, and the measured speed of copies between pinned
// host memory and the GPU.
//
// Callable without a GPU and in builds without the CUDA Toolkit. Makes a context on the GPU and gives back
// whatever it allocates. Never throws: a fact that cannot be found out says why. Caller: one thread, once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/cuda/nvml.h"

namespace sluice {

struct CudaPinning {
  uint64_t asked = 0;   // bytes of host memory
  uint64_t pinned = 0;  // `asked`, halved for each refusal; 0: none
  double seconds = 0;   // that pinning took, on memory that was not touched before
  std::string reason;   // why `pinned` is less than `asked`; else empty
};

struct CudaCopies {
  uint64_t bytes = 0;  // of one copy
  int times = 0;       // copies of which the median is taken
  // Bytes a second. `both` is the sum for two copies that run at once, one in each direction.
  double host_to_device = 0, device_to_host = 0, both = 0;
};

struct CudaFacts {
  CudaStatus status;
  int toolkit_version = 0;  // CUDA version of this build, written as driver_version; 0: none
  // These describe an available GPU.
  std::string pci_bus_id;  // as in /sys/bus/pci/devices: "0000:17:00.0"
  Known<std::string> driver;
  Known<NvmlMemory> memory;   // before this process had a context; without NVML, after
  Known<NvmlLink> link;       // just after copies, when it is not idle
  Known<std::string> cublas;  // the file of cuBLASLt
  Known<CudaPinning> pinning;
  Known<CudaCopies> copies;
};

struct CudaFactsOptions {
  int ordinal = 0;
  uint64_t host_bytes_most = 0;  // to pin
  double (*clock)() = nullptr;   // seconds
  Known<NvmlApi> nvml;
};

CudaFacts cuda_facts(const CudaFactsOptions& options);

// Opens cuBLASLt (gpu/cuda/cublaslt.h) and returns the file that the loader found for it.
Known<std::string> cublas_file();
// Names of libraries that are opened at run time and that the loader does not find.
std::vector<std::string> missing_libraries();

}  // namespace sluice
