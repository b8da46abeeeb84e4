// What --nvme-dir means for the nvme tier: the part of the tier's bytes that each directory holds, by the
// rate of the directory's drive, and how large the tier can be.
//
// Looks at file systems and allocates nothing there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/run/options/options.h"
#include "offload/nvme_files.h"

namespace sluice {

// The directories in the order given, with their drive shares by resolve_machine(). All shares are equal
// where no drive is described. Throws as resolve_machine() does.
std::vector<NvmeDirectory> nvme_directories(const MemoryOptions& options);

// A sentence about several directories: the share of each, and which drive of the description it is taken
// for.
std::string describe_directories(const MemoryOptions& options, const std::vector<NvmeDirectory>& directories);

struct NvmeRoom {
  uint64_t free = 0;               // bytes of a tier that fit, until the first file system is full
  uint64_t after_margin = 0;       // as `free`, if each file system's margin stays free
  std::string full;                // the directories on the file system that is full first: "DIR and DIR"
  std::vector<std::string> notes;  // sentences: which directories share a file system
};

// `margin_of` returns how many of the given free bytes are to stay free for others. `sharers`: ranks that
// divide the free bytes. Throws Error(environment) for a directory that is not there.
NvmeRoom nvme_room(const std::vector<NvmeDirectory>& directories, int sharers,
                   const std::function<uint64_t(uint64_t)>& margin_of);

}  // namespace sluice
