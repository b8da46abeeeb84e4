#include "engine/rates/drives.h"

#include <algorithm>
#include <filesystem>

namespace sluice {

namespace {

// The path with symbolic links followed. It need not exist here. A path that cannot be followed stands for
// itself.
std::string followed(const std::string& path) {
  std::error_code error;
  const std::filesystem::path end = std::filesystem::weakly_canonical(path, error);
  const std::string text = error ? path : end.string();
  return text.size() > 1 && text.ends_with('/') ? text.substr(0, text.size() - 1) : text;
}

}  // namespace

DuplexRates duplex_rates(const DriveRates& d) {
  return {std::min(d.read, std::max(d.mixed / 2, d.mixed - d.write)),
          std::min(d.write, std::max(d.mixed / 2, d.mixed - d.read))};
}

// Moves one byte each way. The faster direction ends first, then the slower one goes on at the rate that it
// has alone.
double drive_weight(const DriveRates& d) {
  const DuplexRates both = duplex_rates(d);
  const double first = 1 / std::max(both.read, both.write);
  const double left = 1 - first * std::min(both.read, both.write);
  return 2 / (first + left / (both.read < both.write ? d.read : d.write));
}

std::vector<DrivePart> drive_parts(const std::vector<DriveRates>& drives, const std::string& tier) {
  std::vector<DrivePart> parts;
  double sum = 0;
  for (uint32_t d = 0; d < drives.size(); ++d)
    if (drives[d].tier == tier) {
      parts.push_back({d, drive_weight(drives[d])});
      sum += parts.back().part;
    }
  for (DrivePart& part : parts) part.part /= sum;
  return parts;
}

std::vector<DriveRates> match_drives(const std::vector<DriveRates>& drives, const std::string& tier,
                                     const std::vector<std::string>& directories) {
  std::vector<const DriveRates*> rows, found(directories.size());
  for (const DriveRates& d : drives)
    if (d.tier == tier) rows.push_back(&d);
  if (rows.empty()) return {};
  std::vector<const DriveRates*> left = rows;
  for (size_t i = 0; i < directories.size(); ++i) {
    const auto same = std::find_if(left.begin(), left.end(), [&](const DriveRates* row) {
      return !row->directory.empty() && followed(row->directory) == followed(directories[i]);
    });
    if (same == left.end()) continue;
    found[i] = *same;
    left.erase(same);
  }
  std::vector<DriveRates> out;
  size_t next = 0;
  for (const DriveRates* row : found) {
    if (!row && next == left.size()) left = rows, next = 0;
    out.push_back(row ? *row : *left[next++]);
  }
  return out;
}

}  // namespace sluice
