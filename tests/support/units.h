// Bytes of the units in which tests write sizes.
#pragma once

#include <cstdint>

namespace sluice {

inline constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

}  // namespace sluice
