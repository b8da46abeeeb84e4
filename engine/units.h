// Sizes in sentences for users.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// Rounded down: "1049 MiB".
inline std::string in_mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace sluice
