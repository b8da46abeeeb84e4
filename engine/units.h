// Sizes and lists in sentences for users.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// Rounded down: "1049 MiB", and "650 KiB" below ten MiB.
inline std::string in_mib(uint64_t bytes) {
  constexpr uint64_t kKib = 1 << 10, kMib = 1 << 20;
  return bytes < 10 * kMib ? std::to_string(bytes / kKib) + " KiB" : std::to_string(bytes / kMib) + " MiB";
}

// "a", "a and b", "a, b and c"; at least one.
inline std::string enumerated(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) text += (i + 1 < words.size() ? ", " : " and ") + words[i];
  return text;
}

}  // namespace sluice
