// What `sluice doctor` finds out about a machine, before checks.h judges it and report.h prints it. Plain
// values, so that tests can make machines up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/cuda/facts.h"
#include "offload/io/backends.h"
#include "offload/nvme_files.h"
#include "offload/system/memory_limits.h"
#include "offload/system/system_facts.h"

namespace sluice {

struct DirectoryFacts {
  std::string path;  // as given
  bool exists = false;
  NvmeProbe probe;
  std::optional<FileSystem> file_system;
};

struct IoFacts {
  const IoBackend* backend = nullptr;
  IoStatus status;
};

enum class GpuUse : uint8_t { if_there, demanded, none };  // --device auto, cuda, or another

struct DoctorFacts {
  GpuUse gpu_use = GpuUse::if_there;
  int ordinal = 0;  // of the GPU, as CUDA counts
  CudaFacts cuda;
  Known<int> nccl;  // its version
  std::string nccl_file;
  std::optional<int> gpu_node;                 // the NUMA node of its slot
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES
  bool root = false;                           // whether the user is root
  SystemFacts system;
  MemoryLimits memory;
  uint64_t lock_asked = 0, locked = 0;  // bytes that were tried, and bytes that could be locked
  std::vector<IoFacts> io;              // of kIoBackends, in order, without the last, which works everywhere
  std::vector<DirectoryFacts> directories;
};

}  // namespace sluice
