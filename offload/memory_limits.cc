#include "offload/memory_limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

namespace sluice {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `key` at the start of a line and white space; none if there is no such line or number.
std::optional<uint64_t> field(std::string_view text, std::string_view key) {
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    if (text.substr(line, key.size()) == key) {
      const size_t begin = text.find_first_not_of(" \t", line + key.size());
      uint64_t value = 0;
      if (begin < end && std::from_chars(text.data() + begin, text.data() + end, value).ec == std::errc{})
        return value;
    }
    line = end + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> number_in(const std::string& path) { return field(contents(path), ""); }

struct Names {  // of one cgroup version's files
  const char *limit, *used, *droppable;
};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr uint64_t kVersion1NoLimit = 1ull << 60;  // "none" is written as the largest multiple of a page

// Looks at `path` below `mount` and every level above it. A path of the host's, seen from inside a
// container, does not exist there; then only the mount itself answers.
void look_at_levels(const std::string& mount, std::string path, const Names& names, MemoryLimits& limits) {
  for (;;) {
    const std::string level = mount + path;
    const std::string file = level + "/" + names.limit;
    const auto limit = number_in(file);  // "max" is not a number
    if (limit && *limit < kVersion1NoLimit) {
      MemoryLimits found = limits;
      found.cgroup_limit = *limit;
      const uint64_t used = number_in(level + "/" + names.used).value_or(0);
      found.cgroup_used =
          used - std::min(used, field(contents(level + "/memory.stat"), names.droppable).value_or(0));
      found.cgroup_file = file;
      if (limits.cgroup_limit == kNoLimit || found.cgroup_left() < limits.cgroup_left()) limits = found;
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

void look_at_cgroups(const std::string& root, MemoryLimits& limits) {
  std::istringstream lines(contents(root + "proc/self/cgroup"));
  const std::string mount = root + "sys/fs/cgroup";
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (!path.empty() && path.front() != '/') continue;
    if (controllers == ",,") {
      look_at_levels(mount, path, kVersion2, limits);
      look_at_levels(mount + "/unified", path, kVersion2, limits);
    } else if (controllers.find(",memory,") != std::string::npos) {
      look_at_levels(mount + "/memory", path, kVersion1, limits);
    }
  }
}

}  // namespace

uint64_t process_peak_bytes(const char* root) {
  char path[512];
  if (std::snprintf(path, sizeof path, "%sproc/self/status", root) >= static_cast<int>(sizeof path))
    return 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[8192];  // the file has about 1.5 KiB
  size_t length = 0;
  for (ssize_t n; length < sizeof text && (n = read(fd, text + length, sizeof text - length)) > 0;)
    length += static_cast<size_t>(n);
  close(fd);
  const std::string_view status(text, length);
  const uint64_t kib = field(status, "VmHWM:").value_or(0) + field(status, "HugetlbPages:").value_or(0);
  return kib << 10;
}

MemoryLimits memory_limits(const std::string& root) {
  MemoryLimits limits;
  const std::string memory = contents(root + "proc/meminfo");
  limits.total = field(memory, "MemTotal:").value_or(0) << 10;  // in kB
  limits.available = field(memory, "MemAvailable:").value_or(0) << 10;
  const std::string own = contents(root + "proc/self/limits");
  limits.lockable = field(own, "Max locked memory").value_or(kNoLimit);
  limits.address_space = field(own, "Max address space").value_or(kNoLimit);
  limits.address_space_used = field(contents(root + "proc/self/status"), "VmSize:").value_or(0) << 10;
  look_at_cgroups(root, limits);
  return limits;
}

}  // namespace sluice
