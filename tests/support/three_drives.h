// Three directories for an nvme tier, and a machine description with three drives.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/training_support.h"

namespace sluice {

constexpr const char* kDriveNames[] = {"a", "b", "c"};
constexpr double kDriveWeights[] = {1, 2, 5};  // GB/s of reads and writes together

// The default machine description, but with three drives.
inline void write_machine(const std::string& path) {
  std::ifstream documentation("docs/machine.md");
  std::string text{std::istreambuf_iterator<char>(documentation), {}};
  const size_t begin = text.find("```json\n") + 8;
  text = text.substr(begin, text.find("```", begin) - begin);
  const size_t drives = text.find("\"drives\": ["), end = text.find("]", drives);
  std::string rows;
  for (const double weight : kDriveWeights)
    rows += fmt::format("{}{{\"tier\": \"nvme\", \"read\": 9e9, \"write\": 9e9, \"mixed\": {}e9}}",
                        rows.empty() ? "" : ", ", weight);
  text.replace(drives, end - drives, "\"drives\": [" + rows);
  write_bytes(path, text);
}

struct Directories {
  explicit Directories(const DriveDirectory& place) {
    for (const char* name : kDriveNames) {
      paths.push_back(place / name);
      std::filesystem::create_directory(paths.back());
    }
  }
  bool are_empty() const {
    return std::all_of(paths.begin(), paths.end(),
                       [](const auto& p) { return std::filesystem::is_empty(p); });
  }
  std::vector<std::string> paths;
};

}  // namespace sluice
