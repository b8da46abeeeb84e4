// The nvme tier: a byte-addressed space over preallocated files, one in each of a table of directories.
//
// The files are unlinked right after opening, so that a killed run leaves nothing behind, and are read and
// written past the page cache (O_DIRECT). Their space is allocated in the constructor and never grows. The
// tier's addresses are laid over the files in table order; a range that is asked for must not cross from one
// file into the next. Made by the set-up code; afterwards constant, so that any lane's thread may ask for
// places.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct NvmeDirectory {
  std::string path;
  uint64_t bytes = 0;  // share of the tier that lives here
};

struct NvmeOptions {
  uint32_t alignment_max = 4096;  // of the tier; a file system that needs more is refused
  bool tmpfs_allowed = false;     // tmpfs is DRAM: as an nvme tier it would break the memory budget
};

class NvmeFiles {
 public:
  struct File {
    std::string name;  // for messages: the directory's path and what it is
    int fd = -1;
    uint64_t begin = 0;  // tier address of its first byte
    uint64_t bytes = 0;  // a multiple of kNvmeFileUnit
  };
  struct Location {
    const File* file = nullptr;
    uint64_t offset = 0;  // in the file
  };

  // Throws Error(environment) when a directory is missing, not a directory, not writable, tmpfs, cannot do
  // direct I/O, or has too little space.
  explicit NvmeFiles(const std::vector<NvmeDirectory>& directories, const NvmeOptions& options = {});
  ~NvmeFiles();
  NvmeFiles(const NvmeFiles&) = delete;
  NvmeFiles& operator=(const NvmeFiles&) = delete;

  uint64_t bytes() const;
  uint32_t alignment() const { return alignment_; }  // of memory, offset and size of a request
  const std::vector<File>& files() const { return files_; }

  // Where the tier's range [address, address + bytes) lies; it lies in one file.
  Location locate(uint64_t address, uint64_t bytes) const;

 private:
  void open_file(const NvmeDirectory& directory, const NvmeOptions& options);
  void close_files();

  std::vector<File> files_;
  uint32_t alignment_ = 512;
};

constexpr uint64_t kNvmeFileUnit = 1 << 20;  // files are whole requests long, so that checksum slots are too

// Bytes that an unprivileged user may still write in the file system of `directory`. Throws
// Error(environment) when it is missing or not a directory.
uint64_t free_bytes(const std::string& directory);

// What a directory offers, with the first thing that stands in the way of using it.
struct NvmeProbe {
  bool directory = false;  // it exists, and holds files of users
  bool writable = false;
  bool memory = false;      // tmpfs
  bool direct_io = false;   // a file was made there and opened past the page cache
  uint32_t alignment = 0;   // of direct I/O there
  uint64_t free_bytes = 0;  // to an unprivileged user
  std::string reason, remedy;  // sentences; empty if NvmeFiles takes the directory
};
NvmeProbe probe_nvme_directory(const std::string& directory);

}  // namespace sluice
