// The fixtures: tiny models as Hugging Face directories, and what PyTorch computes from them
// (tests/fixtures/README.md). Every directory with a config.json is one, so a test that reads them covers
// every family.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/file.h"

namespace sluice {

struct Fixture {
  std::string name, directory;
  std::string config, expected;  // config.json and expected.json, as text
};

inline const std::string kFixtureFolder = "tests/fixtures/";
inline const std::string kFixtureTokens = kFixtureFolder + "tokens.bin";

// All fixtures, sorted by name.
inline std::vector<Fixture> fixtures() {
  constexpr uint64_t kBytesMax = 1 << 20;
  std::vector<Fixture> all;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtureFolder)) {
    const std::string directory = entry.path().string();
    if (!std::filesystem::exists(directory + "/config.json")) continue;
    all.push_back({entry.path().filename().string(), directory,
                   read_text_file(directory + "/config.json", kBytesMax),
                   read_text_file(directory + "/expected.json", kBytesMax)});
  }
  std::sort(all.begin(), all.end(), [](const Fixture& a, const Fixture& b) { return a.name < b.name; });
  return all;
}

}  // namespace sluice
