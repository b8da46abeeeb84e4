// Writes the inputs that fuzzers start from as files DIRECTORY/TARGET/NUMBER. Run in the repository root.
// usage: write_seeds DIRECTORY
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/seeds.h"

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds DIRECTORY\n");
    return 2;
  }
  for (const char* target : sluice::fuzzing::kTargetNames) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target;
    std::filesystem::create_directories(folder);
    for (size_t number = 0; const std::string& seed : sluice::fuzzing::seeds_of(target)) {
      std::ofstream file(folder / std::to_string(number++), std::ios::binary);
      file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
      if (!file.flush()) throw std::runtime_error("cannot write to " + folder.string());
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "write_seeds: %s\n", error.what());
  return 1;
}
