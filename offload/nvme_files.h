// The nvme tier: a byte-addressed space over preallocated files, one in each directory of a list.
//
// The files are unlinked right after opening, so that a killed run leaves nothing behind, and are read and
// written past the page cache (O_DIRECT). Their space is allocated in the constructor and never grows. The
// tier's addresses are laid over the files in stripes, in proportion to NvmeDirectory::part. Only the lane
// that makes the requests (transfer_lane.h) needs to know in which file an address lies. The set-up code
// makes the tier. It is constant afterwards, so any lane's thread may call locate().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offload/stripes.h"

namespace sluice {

struct NvmeDirectory {
  std::string path;
  double part = 1;  // it holds `part` / (sum of all `part`s) of the tier's bytes
};

struct NvmeOptions {
  uint32_t alignment_max = 4096;  // of the tier; a file system that needs more is refused
  bool tmpfs_allowed = false;     // tmpfs is DRAM: as an nvme tier it would break the memory budget
};

class NvmeFiles {
 public:
  struct File {
    std::string name;  // for messages: what the file is, and its directory
    int fd = -1;
    uint64_t bytes = 0;  // whole stripes
  };
  struct Location {
    const File* file = nullptr;
    uint64_t offset = 0;  // in the file
  };

  // `bytes` are rounded up to whole stripes. Throws Error(environment), naming the directory, when a
  // directory is missing, not a directory, not writable, tmpfs, cannot do direct I/O, or has too little
  // space.
  NvmeFiles(const std::vector<NvmeDirectory>& directories, uint64_t bytes, const NvmeOptions& options = {});
  ~NvmeFiles();
  NvmeFiles(const NvmeFiles&) = delete;
  NvmeFiles& operator=(const NvmeFiles&) = delete;

  uint64_t bytes() const { return bytes_; }
  uint32_t alignment() const { return alignment_; }  // of memory, offset and size of a request
  const std::vector<File>& files() const { return files_; }

  // Where the tier's range [address, address + bytes) lies. The range must not leave its stripe.
  Location locate(uint64_t address, uint64_t bytes) const;

 private:
  void open_file(const std::string& directory, uint64_t bytes, const NvmeOptions& options);
  void close_files();

  const Stripes stripes_;
  const uint64_t bytes_;
  std::vector<File> files_;
  uint32_t alignment_ = 512;
};

// Bytes that an unprivileged user may still write in the file system of `directory`. Throws
// Error(environment) when it is missing or not a directory.
uint64_t free_bytes(const std::string& directory);

// Files that an unprivileged user may still make in the file system of `directory`; UINT64_MAX where the file
// system counts none. Throws as free_bytes() does.
uint64_t free_files(const std::string& directory);

// Which file system a directory is on; throws as free_bytes() does.
uint64_t file_system_id(const std::string& directory);

// Free space of one file system.
struct FreeSpace {
  uint64_t bytes = 0;
  std::vector<uint32_t> files;  // indices of the tier's files that would lie there
};

// The largest tier whose files fit into their file systems, and the file system that bounds it.
struct TierRoom {
  uint64_t bytes = 0;
  size_t full = 0;  // index into `places`
};
TierRoom room_for(const Stripes& stripes, std::span<const FreeSpace> places);

Stripes stripes_of(const std::vector<NvmeDirectory>& directories);  // at least one

// What a directory offers, and the first obstacle to its use.
struct NvmeProbe {
  bool directory = false;  // it exists, and its file system takes users' files
  bool writable = false;
  bool memory = false;         // tmpfs
  bool direct_io = false;      // a file was made there and opened with O_DIRECT
  uint32_t alignment = 0;      // of direct I/O there
  uint64_t free_bytes = 0;     // to an unprivileged user
  std::string reason, remedy;  // sentences; empty if NvmeFiles takes the directory
};
NvmeProbe probe_nvme_directory(const std::string& directory);

}  // namespace sluice
