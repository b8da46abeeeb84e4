// Sizes as people write them: `1.5GiB`, `800MB`, `4096`, `80%`, `auto`.
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

// Text that parse_size() reads back to the same value.
std::string size_text(const Size& size);

}  // namespace sluice
