// Sizes, times and lists in sentences for users.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// Three significant digits and a binary unit: "1.50 GiB".
std::string format_size(uint64_t bytes);

// Rounds down to whole MiB, below ten MiB to whole KiB: "1049 MiB", "650 KiB". For sizes that users compare
// or paste.
std::string in_mib(uint64_t bytes);

// Three significant digits; from 1000 s on, whole seconds: "1243 s", "1.31 s", "3 µs".
std::string readable_seconds(double seconds);

// "a", "a and b", "a, b and c"; at least one.
std::string enumerated(const std::vector<std::string>& words);

}  // namespace sluice
