// How much memory the system grants this process, and the most that it has used.
//
// Reads /proc and the cgroup file system. `root` is "/", or in tests a directory with such files. The set-up
// code asks for limits; the metrics ask for the peak once a step, which allocates nothing.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// VmHWM + HugetlbPages: the most physical memory the process has held. 0 where the system does not say.
uint64_t process_peak_bytes(const char* root = "/");
// VmRSS + HugetlbPages: the physical memory that the process holds at this moment.
uint64_t process_resident_bytes(const char* root = "/");

constexpr uint64_t kNoLimit = UINT64_MAX;

struct MemoryLimits {
  uint64_t total = 0;                 // MemTotal
  uint64_t available = 0;             // MemAvailable
  uint64_t cgroup_limit = kNoLimit;   // of the level with the least left: the own cgroup or one above it
  uint64_t cgroup_used = 0;           // at that level, without file pages that the kernel would drop first
  std::string cgroup_file;            // where that limit is written; empty when there is none
  uint64_t lockable = kNoLimit;       // soft RLIMIT_MEMLOCK
  uint64_t lockable_hard = kNoLimit;  // as far as the process may raise `lockable`
  uint64_t address_space = kNoLimit;  // soft RLIMIT_AS (ulimit -v)
  uint64_t address_space_used = 0;    // VmSize
  uint64_t file_size = kNoLimit;      // soft RLIMIT_FSIZE (ulimit -f): of a file that the process writes

  uint64_t cgroup_left() const {
    if (cgroup_limit == kNoLimit) return kNoLimit;
    return cgroup_used < cgroup_limit ? cgroup_limit - cgroup_used : 0;
  }
  // The machine's memory or the cgroup's limit, whichever is smaller.
  uint64_t physical() const { return total < cgroup_limit ? total : cgroup_limit; }
  // What the machine has available or what the cgroup has left, whichever is smaller.
  uint64_t usable() const { return available < cgroup_left() ? available : cgroup_left(); }
};

// What each of `users` equal users may count on. Only the users in this process share its address space.
MemoryLimits shared_by(int64_t users, int64_t users_of_process, MemoryLimits limits);

// Reads cgroup v2 and v1 (also both, "hybrid"). What cannot be read counts as no limit.
MemoryLimits memory_limits(const std::string& root = "/");

}  // namespace sluice
