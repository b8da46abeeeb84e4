// What the system offers beside the limits of memory_limits.h: processors, NUMA nodes, huge pages, file
// systems, cards. For `sluice doctor`.
//
// Reads /proc and /sys below `root`: "/", or in tests a directory with such files. What cannot be read is
// empty, 0 or none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct NumaNode {
  int id = 0;
  uint64_t memory_bytes = 0;
  bool allowed = true;         // this process may have memory there
  std::vector<int> distances;  // to each node of the table, in its order; 10 is local
};

struct HugePagePool {
  uint64_t page_bytes = 0, pages = 0, free_pages = 0;
};

struct SystemFacts {
  std::string kernel;                     // its release
  bool container = false;                 // inside one of Docker or Podman
  int processors = 0;                     // on which this process may run
  std::optional<double> processor_quota;  // in processors: the least limit of the cgroup and levels above
  std::string processor_quota_file;
  std::vector<NumaNode> nodes;         // by id
  std::string transparent_huge_pages;  // "always", "madvise" or "never"; empty: the kernel has none
  std::vector<HugePagePool> pools;     // explicit ones, by page size
  bool nvidia_card = false;            // on the PCI bus, whether or not a driver serves it
};

SystemFacts system_facts(const std::string& root = "/");

// The node that a card is attached to; `pci_bus_id` as in "0000:17:00.0". None where the firmware does not
// say.
std::optional<int> numa_node_of_card(const std::string& pci_bus_id, const std::string& root = "/");

struct FileSystem {
  std::string type, source, mount_point;  // "ext4", "/dev/nvme0n1p1", "/mnt/fast"
  bool read_only = false;                 // as it is mounted there
};

// The file system of `directory`, an absolute path without symbolic links.
std::optional<FileSystem> file_system_of(const std::string& directory, const std::string& root = "/");

// Bytes that this process can lock in memory at this moment: `most`, halved until the system locks that
// many.
uint64_t lockable_bytes(uint64_t most);

}  // namespace sluice
