// What the tests of offload/ share: the I/O back ends that work here, and bytes that tell where they belong.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "offload/io/backends.h"
#include "tests/support/test_directory.h"

namespace sluice {

// Whether this system has the back end. If not, the reason is printed.
inline bool works_here(const IoBackend* backend) {
  const MadeIoQueue made = backend->make(1, {});
  if (!made.queue) std::printf("%s cannot be used here: %s\n", backend->title, made.status.reason.c_str());
  return made.queue != nullptr;
}
inline std::vector<const IoBackend*> working_io_backends() {
  std::vector<const IoBackend*> working;
  for (const IoBackend* backend : kIoBackends)
    if (works_here(backend)) working.push_back(backend);
  return working;
}
inline std::string name_of_backend(const ::testing::TestParamInfo<const IoBackend*>& test) {
  return test.param->name;
}

// Pseudo-random bytes, a function of key and position (splitmix64; Steele, Lea, Flood 2014).
inline std::byte pattern(uint64_t key, uint64_t position) {
  uint64_t z = key * 0x9E3779B97F4A7C15ull + position / 8;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<std::byte>((z ^ (z >> 31)) >> (position % 8 * 8));
}

inline void fill_pattern(std::span<std::byte> memory, uint64_t key) {
  for (uint64_t i = 0; i < memory.size(); ++i) memory[i] = pattern(key, i);
}

// Position of the first byte that differs from the pattern, or the size.
inline uint64_t pattern_end(std::span<const std::byte> memory, uint64_t key) {
  uint64_t i = 0;
  while (i < memory.size() && memory[i] == pattern(key, i)) ++i;
  return i;
}

}  // namespace sluice
