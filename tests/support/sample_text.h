// Text and tokens to train on.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace sluice {

// Text with structure that a tiny model learns within a few steps: a deterministic walk over a few words.
inline std::string sample_text(size_t bytes, uint64_t seed = 1) {
  static constexpr const char* kWords[] = {"the ",  "earth ", "was ",  "without ",
                                           "form ", "and ",   "void ", "light.\n"};
  std::string text;
  for (uint64_t state = seed; text.size() < bytes;) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    text += kWords[state >> 61];
  }
  text.resize(bytes);
  return text;
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

// The same text as nanoGPT tokens, for vocabularies other than 256.
inline void write_tokens(const std::string& path, size_t count, uint64_t seed = 1) {
  std::string bytes;
  for (const char c : sample_text(count, seed)) bytes += {c, '\0'};
  write_bytes(path, bytes);
}

}  // namespace sluice
