// Sizes in sentences for users.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// Rounded down: "1049 MiB", and "650 KiB" below ten MiB.
inline std::string in_mib(uint64_t bytes) {
  constexpr uint64_t kKib = 1 << 10, kMib = 1 << 20;
  return bytes < 10 * kMib ? std::to_string(bytes / kKib) + " KiB" : std::to_string(bytes / kMib) + " MiB";
}

}  // namespace sluice
