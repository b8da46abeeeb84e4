// Sizes as people write them: `1.5GiB`, `800MB`, `1048576`, `80%`, `auto`.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/options/options.h"

namespace sluice {

// KB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024; case does not matter. No
// unit or B means bytes. Fractions of a unit are exact, rounded down to a byte. Throws Error(usage) naming
// `option` (without dashes) for negative values, values above 2^64 - 1, percentages outside (0, 100], unknown
// units and any other text.
Size parse_size(const std::string& text, const std::string& option);

// A budget of fewer bytes needs a unit, since whoever writes a plain 64 has forgotten the unit.
constexpr uint64_t kPlainBytesLeast = 64 << 10;

// Text that parse_size() reads back to the same value. It has a unit where a budget needs one.
std::string size_text(const Size& size);

}  // namespace sluice
