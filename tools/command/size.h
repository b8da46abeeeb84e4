// Sizes as people write and read them: `1.5GiB`, `800MB`, `4096`, `80%`, `auto`; times as they read them.
// Set-up code, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/options.h"

namespace sluice {

// KB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024, upper or lower case; no unit or B means
// bytes. Fractions of a unit are exact and rounded down to a byte. Throws Error(usage) naming `option`
// (without dashes) for anything else: negative, above 2^64 - 1, percentages outside (0, 100], unknown
// units.
Size parse_size(const std::string& text, const std::string& option);

// For reading: three significant digits and a binary unit, "1.50 GiB".
std::string format_size(uint64_t bytes);

// The same of times: "1240 s", "1.31 s", "12.4 ms", "3 µs".
std::string readable_seconds(double seconds);

}  // namespace sluice
