#include "offload/system/memory_limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "offload/system/proc_files.h"

namespace sluice {
namespace {

struct Names {  // of one cgroup version's files
  const char *limit, *used, *droppable;
};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr uint64_t kVersion1NoLimit = 1ull << 60;  // "none" is written as the largest multiple of a page

// Takes the level's limit if it leaves less memory than the limits of the levels before.
void look_at_level(const CgroupLevel& level, MemoryLimits& limits) {
  const Names& names = level.version2 ? kVersion2 : kVersion1;
  const std::string file = level.path + "/" + names.limit;
  const auto limit = number_in(file);  // "max" is not a number
  if (!limit || *limit >= kVersion1NoLimit) return;
  MemoryLimits found = limits;
  found.cgroup_limit = *limit;
  const uint64_t used = number_in(level.path + "/" + names.used).value_or(0);
  const auto droppable = number_field(file_text(level.path + "/memory.stat"), names.droppable);
  found.cgroup_used = used - std::min(used, droppable.value_or(0));
  found.cgroup_file = file;
  if (limits.cgroup_limit == kNoLimit || found.cgroup_left() < limits.cgroup_left()) limits = found;
}

// Bytes of the process: the figure of resident memory that `key` names, and HugetlbPages. Allocates nothing.
uint64_t resident_bytes(const char* root, const char* key) {
  char path[512];
  if (std::snprintf(path, sizeof path, "%sproc/self/status", root) >= static_cast<int>(sizeof path)) return 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[8192];  // the file has about 1.5 KiB
  size_t length = 0;
  for (ssize_t n; length < sizeof text && (n = read(fd, text + length, sizeof text - length)) > 0;)
    length += static_cast<size_t>(n);
  close(fd);
  const std::string_view status(text, length);
  const uint64_t resident = number_field(status, key).value_or(0);
  return (resident + number_field(status, "HugetlbPages:").value_or(0)) << 10;  // in kB
}

}  // namespace

uint64_t process_peak_bytes(const char* root) { return resident_bytes(root, "VmHWM:"); }
uint64_t process_resident_bytes(const char* root) { return resident_bytes(root, "VmRSS:"); }

MemoryLimits memory_limits(const std::string& root) {
  MemoryLimits limits;
  const std::string memory = file_text(root + "proc/meminfo");
  limits.total = number_field(memory, "MemTotal:").value_or(0) << 10;  // in kB
  limits.available = number_field(memory, "MemAvailable:").value_or(0) << 10;
  const std::string own = file_text(root + "proc/self/limits");
  limits.lockable = number_field(own, "Max locked memory").value_or(kNoLimit);
  if (const auto both = text_field(own, "Max locked memory")) {  // soft and hard limit
    const auto soft = std::min(both->find(' '), both->size());
    limits.lockable_hard = number_field(both->substr(soft), "").value_or(kNoLimit);
  }
  limits.address_space = number_field(own, "Max address space").value_or(kNoLimit);
  limits.file_size = number_field(own, "Max file size").value_or(kNoLimit);
  limits.address_space_used = number_field(file_text(root + "proc/self/status"), "VmSize:").value_or(0) << 10;
  for (const CgroupLevel& level : cgroup_levels(root, "memory")) look_at_level(level, limits);
  return limits;
}

MemoryLimits shared_by(int64_t users, int64_t users_of_process, MemoryLimits limits) {
  const auto share = [](uint64_t bytes, int64_t all) { return bytes / static_cast<uint64_t>(all); };
  limits.available = share(limits.available, users);
  if (limits.cgroup_limit != kNoLimit)
    limits.cgroup_used = limits.cgroup_limit - share(limits.cgroup_left(), users);
  if (limits.address_space > limits.address_space_used && limits.address_space != kNoLimit)
    limits.address_space_used =
        limits.address_space - share(limits.address_space - limits.address_space_used, users_of_process);
  return limits;
}

}  // namespace sluice
