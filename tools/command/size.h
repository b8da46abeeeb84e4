// Sizes as people write them: `1.5GiB`, `800MB`, `4096`, `80%`, `auto`.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/options/options.h"

namespace sluice {

// KB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024, upper or lower case; no unit or B means
// bytes. Fractions of a unit are exact and rounded down to a byte. Throws Error(usage) naming `option`
// (without dashes) for anything else: negative, above 2^64 - 1, percentages outside (0, 100], unknown
// units.
Size parse_size(const std::string& text, const std::string& option);

}  // namespace sluice
