// Where the kernel would put the pages of a mapping, as /proc/self/numa_maps shows it.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace sluice {

// The kernel's text about the mapping that holds `memory`, from the policy on, such as "default ..." or
// "prefer (many):0 ...". None where the kernel does not show policies.
inline std::optional<std::string> memory_policy(const void* memory) {
  std::optional<std::string> found;
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {  // in order of address
    std::istringstream words(line);
    uint64_t begin = 0;
    words >> std::hex >> begin;
    if (begin > reinterpret_cast<uintptr_t>(memory)) break;
    found = line.substr(line.find(' ') + 1);
  }
  return found;
}

}  // namespace sluice
