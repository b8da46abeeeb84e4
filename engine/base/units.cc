#include "engine/base/units.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice {

std::string format_size(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 999.5) {  // would round to four digits
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  const int decimals = value < 0.9995 ? 3 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kNames[unit]);
}

std::string readable_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 999.5) return fmt::format("{:.0f} s", seconds);
  if (size >= 0.9995 || size == 0) return fmt::format("{:.3g} s", seconds);
  if (size >= 0.9995e-3) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return fmt::format("{:.3g} \u00b5s", 1e6 * seconds);
}

std::string in_mib(uint64_t bytes) {
  constexpr uint64_t kKib = 1 << 10, kMib = 1 << 20;
  return bytes < 10 * kMib ? std::to_string(bytes / kKib) + " KiB" : std::to_string(bytes / kMib) + " MiB";
}

std::string enumerated(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) text += (i + 1 < words.size() ? ", " : " and ") + words[i];
  return text;
}

}  // namespace sluice
