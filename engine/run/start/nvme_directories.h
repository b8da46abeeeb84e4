// What --nvme-dir means for the nvme tier: which part of it each directory holds, by the rates of its drive,
// and how much room that leaves.
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

// The directories, in the order given, with their drives' weights by resolve_machine(); all weigh the same
// where no drive is described. Throws as resolve_machine() does.
std::vector<NvmeDirectory> nvme_directories(const MemoryOptions& options);

// A sentence about several directories: the part of each, and the drive that it is taken for.
std::string describe_directories(const MemoryOptions& options, const std::vector<NvmeDirectory>& directories);

struct NvmeRoom {
  uint64_t free = 0;          // bytes of a tier that fit: the first file system to be full bounds them
  uint64_t after_margin = 0;  // the same, when the margin of every file system is left to others
  std::string full;           // where `free` ends: "DIR", "DIR and DIR"
  std::vector<std::string> notes;  // sentences: which directories share a file system
};

// `margin_of`: what is left to others of the bytes that are free. `sharers`: ranks that divide those. Throws
// Error(environment) for a directory that is not there.
NvmeRoom nvme_room(const std::vector<NvmeDirectory>& directories, int sharers,
                   const std::function<uint64_t(uint64_t)>& margin_of);

}  // namespace sluice
