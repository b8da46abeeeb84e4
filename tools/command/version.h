// The version of Sluice, as `sluice --version` and reports have it.
#pragma once

namespace sluice {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace sluice
