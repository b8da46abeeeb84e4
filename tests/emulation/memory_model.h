// Memory of the emulated GPU: device memory with its protection, and registered host memory. The model's lock
// guards both (gpu_state.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace sluice::emulation {

// Ranges that do not overlap, by their beginning.
class Ranges {
 public:
  bool add(const void* begin, uint64_t bytes);  // false: it overlaps with one that is there
  uint64_t remove(const void* begin);           // its bytes; 0: none begins here
  bool contains(const void* begin, uint64_t bytes) const;
  uint64_t bytes() const { return bytes_; }
  const std::map<uintptr_t, uint64_t>& all() const { return ranges_; }

 private:
  std::map<uintptr_t, uint64_t> ranges_;
  uint64_t bytes_ = 0;
};

// What this process has on one GPU.
struct Card {
  bool context = false, libraries = false;
  uint64_t streams_that_copied = 0;
  std::set<std::pair<uint32_t, std::vector<int>>> products;  // kernels of cuBLASLt
  Ranges memory;
};

// New device memory, filled with NaN and closed, between pages that are never open. nullptr: the host has no
// more.
std::byte* map_device_memory(uint64_t bytes);
void unmap_device_memory(void* begin, uint64_t bytes);

// The bytes of a range of ordinary memory whose pages do not exist yet.
uint64_t untouched_bytes(const void* begin, uint64_t bytes);

// While this object lives, device memory is accessible.
class OpenMemory {
 public:
  explicit OpenMemory(const Ranges& device_memory);
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;

 private:
  Ranges ranges_;
};

}  // namespace sluice::emulation
